package blockmgr

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// residents counts the blocks that are in host memory, and uses none of them.
func (p *testPool) residents(chains ...[]Block) (n int) {
	there := map[kv.StoredKey]bool{}
	for _, info := range p.Dump() {
		there[info.Block.Key] = info.Tiers.Has(kv.TierHost)
	}
	for _, blocks := range chains {
		for i := range blocks {
			if there[blocks[i].Key] {
				n++
			}
		}
	}
	return n
}

// storeEach stores prompts of 8 blocks and returns them.
func (p *testPool) storeEach(first, prompts uint64, priority uint32) (stored [][]Block) {
	for seed := range prompts {
		blocks := chain(first+seed, 8)
		p.storeAt(blocks, priority)
		p.quiesce()
		stored = append(stored, blocks)
	}
	return stored
}

// Blocks of priority 1 outlive those of priority 0 by one turnover of the tier, and
// no longer when nobody uses them.
func TestPriorityAges(t *testing.T) {
	const slots = 512
	p := newTestPool(t, Config{HostBytes: hostBytes(slots)})
	high := p.storeEach(1, 24, 1) // 192 blocks
	low := p.storeEach(1000, 80, 0)
	if n := p.residents(high...); n != 192 {
		t.Errorf("%d of 192 blocks of priority 1 are left after a turnover in which as many more of priority 0 came", n)
	}
	if n := p.residents(low[40:]...); n != 320 {
		t.Errorf("%d of the last 320 blocks of priority 0 are left", n)
	}
	low = p.storeEach(2000, 80, 0)
	if n := p.residents(high...); n != 0 {
		t.Errorf("%d blocks of priority 1 are left that nobody has used for more than two turnovers", n)
	}
	if n := p.residents(low[16:]...); n != slots {
		t.Errorf("%d of the last %d blocks of priority 0 are left", n, slots)
	}
}

// A tier full of stale blocks of priority 1 does not confine what comes later.
func TestStaleBlocksOfAPriorityConfineNothing(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(512)})
	high := p.storeEach(1, 64, 1)
	low := p.storeEach(1000, 130, 0)
	if n := p.residents(high...); n != 0 {
		t.Errorf("%d stale blocks of priority 1 are left", n)
	}
	if n := p.residents(low[66:]...); n != 512 {
		t.Errorf("%d of the last 512 blocks of priority 0 are left", n)
	}
}

// Using a block of a priority renews its advantage.
func TestPriorityOfABlockInUseStays(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(512)})
	high := p.storeEach(1, 8, 1)
	for round := range uint64(8) {
		p.storeEach(1000+100*round, 40, 0)
		for _, blocks := range high {
			if n := len(p.find(blocks)); n != 8 {
				t.Fatalf("round %d: %d of 8 blocks of priority 1 are left", round, n)
			}
		}
	}
}
