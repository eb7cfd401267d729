package blockmgr

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

func TestOneReadServesAllLookupsAndADeadlineLeavesTheRestComing(t *testing.T) {
	release := make(chan struct{})
	var stalled atomic.Bool
	p := diskPool(t, func(cfg *Config) {
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpRead && stalled.Load() {
				<-release
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	noError(t, p.BeginSession(2))
	blocks := chain(1, 4)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	p.find(blocks[:1])
	stalled.Store(true)

	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := p.Lookup(hurried, 1, blocks)
	if err != nil || len(res.Slots) != 1 || res.Coming != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	noError(t, p.Unpin(1, res.Slots))
	var wg sync.WaitGroup
	for _, s := range []SessionID{1, 2} {
		wg.Go(func() {
			res, err := p.Lookup(t.Context(), s, blocks)
			if got := sources(res.Sources); err != nil || got != "HDDD" {
				t.Errorf("session %d: found %q, %v", s, got, err)
			}
			if err := p.Unpin(s, res.Slots); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return p.Stats().PromotionsShared == 6 })
	p.check()
	close(release)
	wg.Wait()
	p.quiesce()
	if st := p.Stats(); st.Promotions != 4 {
		t.Errorf("%d reads, want 4", st.Promotions)
	}
}

func TestSessionThatEndsDuringALookupLeavesNothingPinned(t *testing.T) {
	release := make(chan struct{})
	p := diskPool(t, func(cfg *Config) {
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpRead {
				<-release
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	noError(t, p.BeginSession(2))
	blocks := chain(1, 2)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	failed := make(chan error)
	go func() {
		_, err := p.Lookup(t.Context(), 2, blocks)
		failed <- err
	}()
	waitFor(t, func() bool { return p.Stats().PromoteQueue == 2 })
	p.EndSession(2, nil)
	close(release)
	if err := <-failed; !errors.Is(err, ErrNoSession) {
		t.Errorf("lookup: %v", err)
	}
	p.quiesce()
	if st := p.Stats(); st.Host.Active != 0 || st.Pins != 0 {
		t.Errorf("%+v", st)
	}
}

func TestBlockWhoseMemoryIsFoundDamagedBeforeALookupAnswersIsAMiss(t *testing.T) {
	cfg := restartConfig(t, false)
	blocks := chain(1, 2)
	first := openTestPool(t, cfg)
	first.store(blocks)
	first.quiesce()
	first.finish()
	p := openTestPool(t, cfg)
	defer p.finish()
	l := lookup{session: p.sid, blocks: blocks}
	if err := p.beginLookup(&l); err != nil || len(l.found) != 2 {
		t.Fatalf("found %d, %v", len(l.found), err)
	}
	found := l.found
	for _, c := range found {
		<-c.flight.Done
	}
	p.mu.Lock() // as the write-behind does when it cannot read the memory
	p.slots.DropDamaged(found[0].ref, extent.ErrMemory)
	p.mu.Unlock()
	if res, err := p.finishLookup(&l); err != nil || len(res.Slots) != 0 {
		t.Errorf("found %+v, %v; want nothing", res, err)
	}
}
