package blockmgr

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// onDisk are blocks that were stored and have left host memory.
func (p *testPool) onDisk(seed uint64, n int) []Block {
	p.t.Helper()
	blocks := chain(seed, n)
	release(p.register(blocks))
	p.quiesce()
	if err := p.Reset(kv.TierHost); err != nil {
		p.t.Fatalf("reset: %v", err)
	}
	return blocks
}

func TestPrefetchBringsThePrefixIntoHostMemoryAndPinsNothing(t *testing.T) {
	p := diskPool(t, func(cfg *Config) { cfg.HostBytes = hostBytes(32) })
	blocks := p.onDisk(1, 6)
	release(p.match(t, blocks[:2]))
	if _, err := p.ResetBlocks(kv.TierDisk, []kv.SequenceHash{blocks[4].Seq}); err != nil {
		t.Fatal(err)
	}
	if n := p.Prefetch(blocks); n != 2 {
		t.Errorf("%d reads started, want those of the two blocks before the hole", n)
	}
	p.quiesce()
	if got := p.tiersOf(blocks); got != "BBBB-D" {
		t.Errorf("resident %q", got)
	}
	st := p.Stats()
	if st.Pins != 0 || st.Host.Active != 0 || st.Prefetched != 2 || st.PrefetchRefused != 0 || p.mover.Prefetching() != 0 {
		t.Errorf("%+v", st)
	}
	// Nothing of it was a hit; the first lookup still says where they came from.
	if st.HostHits+st.DiskHits != 2 {
		t.Errorf("%d hits", st.HostHits+st.DiskHits)
	}
	if got := sources(p.find(blocks)); got != "HHDD" {
		t.Errorf("found %q", got)
	}
	if n := p.Prefetch(blocks[:4]); n != 0 {
		t.Errorf("%d reads of what is there", n)
	}
}

func TestPrefetchTakesAQuarterOfTheHostSlotsAtATime(t *testing.T) {
	gate := &storagetest.Gate{}
	p := diskPool(t, func(cfg *Config) {
		cfg.HostBytes, cfg.WrapDisk = hostBytes(16), stallReads(gate)
	})
	blocks := p.onDisk(1, 10)
	if n := p.Prefetch(blocks); n != 4 {
		t.Errorf("%d reads at once beside 16 slots", n)
	}
	if n := p.Prefetch(blocks); n != 0 {
		t.Errorf("%d more reads at once", n)
	}
	if st := p.Stats(); st.Prefetched != 4 || st.PrefetchRefused != 6+6 {
		t.Errorf("%d prefetched, %d refused", st.Prefetched, st.PrefetchRefused)
	}
	p.check()
	gate.Open()
	p.quiesce()
	if n := p.Prefetch(blocks); n != 4 {
		t.Errorf("%d reads once the first are done", n)
	}
	p.quiesce()
	if got := p.tiersOf(blocks); got != "BBBBBBBBDD" {
		t.Errorf("resident %q", got)
	}
}

func TestLookupJoinsTheReadOfAPrefetch(t *testing.T) {
	gate := &storagetest.Gate{}
	p := diskPool(t, func(cfg *Config) { cfg.WrapDisk = stallReads(gate) })
	blocks := p.onDisk(1, 2)
	if n := p.Prefetch(blocks); n != 2 {
		t.Fatalf("%d reads", n)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if n := p.matched(t, blocks); n != 2 {
			t.Errorf("%d blocks found", n)
		}
	})
	waitFor(t, func() bool { return p.Stats().PromotionsShared == 2 })
	gate.Open()
	wg.Wait()
	if st := p.Stats(); st.Promotions != 2 {
		t.Errorf("%d reads of 2 blocks", st.Promotions)
	}
	p.quiesce()
}

func TestPrefetchOfNothingToReadStartsNothing(t *testing.T) {
	p := diskPool(t, nil)
	blocks := p.onDisk(1, 2)
	twice := []Block{blocks[0], blocks[0]}
	for name, c := range map[string]struct {
		blocks []Block
		want   int
	}{
		"no blocks": {nil, 0}, "an unknown block": {chain(9, 3), 0}, "a block twice": {twice, 1},
		"what comes after an unknown block": {append(chain(9, 1), blocks...), 0},
	} {
		if n := p.Prefetch(c.blocks); n != c.want {
			t.Errorf("%s: %d reads", name, n)
		}
		p.quiesce()
		if err := p.Reset(kv.TierHost); err != nil {
			t.Fatal(err)
		}
	}
	if n := newTestPool(t, Config{HostBytes: hostBytes(4)}).Prefetch(blocks); n != 0 {
		t.Errorf("%d reads without a disk", n)
	}
}

func TestPrefetchThatFailsGivesItsSlotsBack(t *testing.T) {
	var armed atomic.Bool
	p := diskPool(t, func(cfg *Config) {
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpRead && armed.Load() {
				return storagetest.FaultEIO
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	blocks := p.onDisk(1, 2)
	armed.Store(true)
	p.Prefetch(blocks)
	p.quiesce()
	if st := p.Stats(); st.Host.Free != 8 || p.tiersOf(blocks) != "DD" || p.mover.Prefetching() != 0 {
		t.Errorf("%+v", st)
	}
}

// What a session has in use does not go for what might be used.
func TestPrefetchTakesNoSlotThatIsInUse(t *testing.T) {
	p := diskPool(t, func(cfg *Config) { cfg.HostBytes = hostBytes(4) })
	blocks := p.onDisk(1, 2)
	p.allocate(4)
	if n := p.Prefetch(blocks); n != 0 || p.Stats().PrefetchRefused != 2 {
		t.Errorf("%d reads, %d refused", n, p.Stats().PrefetchRefused)
	}
}
