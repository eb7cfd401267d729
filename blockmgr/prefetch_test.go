package blockmgr

import (
	"sync"
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
