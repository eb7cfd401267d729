package blockmgr

import (
	"sync/atomic"
	"testing"
	"time"
)

// countedBudget grants left blocks.
type countedBudget struct{ left, records atomic.Int64 }

func (c *countedBudget) Take(uint64, time.Time) bool     { return c.left.Add(-1) >= 0 }
func (c *countedBudget) Wrote(bytes uint64, _ time.Time) { c.records.Add(int64(bytes)) }

// A block for which the budget has no bytes stays in host memory, and is written when it is wanted again
// and there are bytes. The records of slots count as written too.
func TestBlocksBeyondTheWriteBudgetAreNotWritten(t *testing.T) {
	budget := &countedBudget{}
	budget.left.Store(3)
	p := diskPool(t, func(cfg *Config) { cfg.Budget = budget })
	blocks := chain(1, 6)
	p.store(blocks)
	p.quiesce()
	if st := p.Stats(); st.WriteBehind != 3 || st.BytesWritten != 3*testSlotBytes || budget.records.Load() < testSlotBytes {
		t.Fatalf("%d blocks written, %d bytes of records; want 3 blocks", st.WriteBehind, budget.records.Load())
	}
	p.find(blocks) // nothing is left: no block waits for the disk
	p.quiesce()
	budget.left.Store(10)
	p.find(blocks)
	p.quiesce()
	if st := p.Stats(); st.WriteBehind != 6 {
		t.Errorf("%d blocks written after the budget has bytes again, want 6", st.WriteBehind)
	}
}
