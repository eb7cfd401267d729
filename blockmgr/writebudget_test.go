package blockmgr

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
)

// countedBudget grants left blocks. It counts the blocks under way, the blocks and the other bytes that
// were written.
type countedBudget struct{ left, underWay, blocks, records atomic.Int64 }

func (c *countedBudget) Reserve(uint64, time.Time) bool {
	c.underWay.Add(1)
	if c.left.Add(-1) >= 0 {
		return true
	}
	c.underWay.Add(-1)
	return false
}

func (c *countedBudget) Settle(_ uint64, written bool, _ time.Time) {
	c.underWay.Add(-1)
	if written {
		c.blocks.Add(1)
	}
}

func (c *countedBudget) Wrote(bytes uint64, _ time.Time) { c.records.Add(int64(bytes)) }
func (c *countedBudget) Most() uint64                    { return 1 << 30 }

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

// A block that finds no disk slot gives its bytes back to the write budget.
func TestRefusedBlocksTakeNothingFromTheWriteBudget(t *testing.T) {
	budget := &countedBudget{}
	budget.left.Store(1000)
	p := newTestPool(t, Config{HostBytes: hostBytes(32), DiskBytes: 8 * testSlotBytes, Budget: budget})
	blocks := chain(1, 24) // a disk of 8 slots keeps the first 8
	p.store(blocks)
	for range 5 {
		p.quiesce()
		p.find(blocks)
	}
	p.quiesce()
	st := p.Stats()
	if st.WriteBehindRefused == 0 || budget.underWay.Load() != 0 || budget.blocks.Load() != int64(st.WriteBehind) {
		t.Errorf("%d blocks written, %d refused; the budget has %d written, %d under way",
			st.WriteBehind, st.WriteBehindRefused, budget.blocks.Load(), budget.underWay.Load())
	}
}

// countedWrites counts the writes to a file. They take as long as stall says, and fail while refuse is true.
type countedWrites struct {
	extent.File
	refuse *atomic.Bool
	stall  *atomic.Int64
	writes *atomic.Int64
}

func (c countedWrites) WriteAt(p []byte, off int64) (int, error) {
	c.writes.Add(1)
	time.Sleep(time.Duration(c.stall.Load()))
	if c.refuse.Load() {
		return 0, unix.EIO
	}
	return c.File.WriteAt(p, off)
}

// A write that fails counts in the write budget. One that is not tried does not: the breaker has opened, or
// the records could not be written.
func TestUntriedWritesTakeNothingFromTheWriteBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := &countedBudget{}
		budget.left.Store(1 << 30)
		var extents, table atomic.Bool // refuse writes
		var stall, none, tried, pages atomic.Int64
		p := newTestPool(t, Config{
			HostBytes: hostBytes(64), DiskBytes: 128 * testSlotBytes, ExtentBytes: 128 * testSlotBytes,
			Transfers: 1, TransferBatch: 16, Budget: budget, IODeadline: 10 * time.Second,
			WrapDisk: func(path string, f extent.File) extent.File {
				if filepath.Base(path) == "slots.table" {
					return countedWrites{File: f, refuse: &table, stall: &none, writes: &pages}
				}
				return countedWrites{File: f, refuse: &extents, stall: &stall, writes: &tried}
			},
		})
		for seed, begin := range []func(){
			func() { extents.Store(true) }, func() { table.Store(true) }, func() { stall.Store(int64(5 * time.Second)) },
		} {
			begin()
			p.store(chain(uint64(1+seed), 1))
			synctest.Wait() // the first write is a batch of its own
			p.store(chain(uint64(11+seed), 19))
			time.Sleep(6 * time.Second) // a batch has collected behind the first write
			for range diskio.BreakerFailures * min(1, stall.Load()) {
				p.broker.health.WriteFailed(unix.EIO) // as writes of another pool do
			}
			time.Sleep(time.Minute)
			extents.Store(false)
			table.Store(false)
			stall.Store(0)
			time.Sleep(2 * diskio.BreakerPauseMax)
			p.quiesce()
		}
		st := p.Stats()
		if st.WriteBehindDropped == 0 || st.TableErrors == 0 || st.WriteErrors < 2*diskio.BreakerFailures || st.WriteBehind < 20 {
			t.Errorf("the disk did not refuse writes, or did not recover: %+v", st)
		}
		if budget.underWay.Load() != 0 || budget.blocks.Load() != tried.Load() {
			t.Errorf("%d writes tried; the budget has %d, and %d under way", tried.Load(), budget.blocks.Load(), budget.underWay.Load())
		}
	})
}

// smallBudget never grants a block.
type smallBudget struct{ countedBudget }

func (*smallBudget) Most() uint64 { return testSlotBytes - 1 }

// Blocks that are larger than the write budget ever has left leave a warning.
func TestBlocksLargerThanTheWriteBudgetAreLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	diskPool(t, func(cfg *Config) { cfg.Budget, cfg.Log = &smallBudget{}, zap.New(core) })
	if n := logs.FilterMessageSnippet("larger than the write budget").Len(); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
	diskPool(t, func(cfg *Config) { cfg.Budget, cfg.Log = &countedBudget{}, zap.New(core) })
	if n := logs.FilterMessageSnippet("larger than the write budget").Len(); n != 1 {
		t.Errorf("%d warnings with a budget that is large enough, want none", n-1)
	}
}

// countedBytes counts the bytes that are written to a file.
type countedBytes struct {
	extent.File
	bytes *atomic.Uint64
}

func (c countedBytes) WriteAt(p []byte, off int64) (int, error) {
	n, err := c.File.WriteAt(p, off)
	c.bytes.Add(uint64(n))
	return n, err
}

// The disk tier has one directory, and so one file system: the budget is that of its device. The last day of the
// budget has each byte that any pool writes there: blocks, records of slots, and zeros over a tenant's blocks.
func TestTheWriteBudgetHasEveryByteOfTheDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, err := policy.NewWriteBudget(policy.LeastWriteBudget, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // a budget begins empty
		var written atomic.Uint64
		p := openTestManager(t, Config{
			HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: 2 * hostBytes(32), DiskBytes: 2 * hostBytes(32), ExtentBytes: hostBytes(32),
			Budget: budget, WrapDisk: func(_ string, f extent.File) extent.File { return countedBytes{f, &written} },
		})
		defer p.m.Close()
		p.setTenants(tenant.Tenant{Name: "t", Salts: []string{"t"}, TTL: time.Minute})
		pools := []*testPool{p.openOther("a"), p.openOther("b")}
		before := budget.Stats(time.Now()).DayBytes
		written.Store(0)
		for i, q := range pools {
			for range 3 { // the tiers grow on demand
				q.store(chain(uint64(1+i), 6))
				q.store(q.owned("t", uint64(10+i), 4))
				q.quiesce()
			}
		}
		time.Sleep(2 * time.Minute)
		for _, q := range pools {
			q.quiesce()
			if st := q.Stats(); st.WriteBehind == 0 || st.BlocksExpired == 0 || st.SlotsErased == 0 {
				t.Fatalf("%d blocks written, %d expired, %d slots erased", st.WriteBehind, st.BlocksExpired, st.SlotsErased)
			}
		}
		if got, want := budget.Stats(time.Now()).DayBytes-before, written.Load(); got != want {
			t.Errorf("the budget has %d bytes, %d were written", got, want)
		}
	})
}
