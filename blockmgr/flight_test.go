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
	if err := p.BeginSession(2); err != nil {
		t.Fatal(err)
	}
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
	if err := p.Unpin(1, res.Slots); err != nil {
		t.Fatal(err)
	}
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

// A block that was promoted for a lookup that could not wait says disk when it
// is reported at last.
func TestPromotedBlockIsReportedAsADiskHitOnce(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 3)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	first, err := p.Lookup(hurried, 1, blocks)
	if err != nil {
		t.Fatal(err)
	}
	p.quiesce()
	if err := p.Unpin(1, first.Slots); err != nil {
		t.Fatal(err)
	}
	if got := sources(first.Sources) + sources(p.find(blocks)[len(first.Slots):]); got != "DDD" {
		t.Errorf("reported %q", got)
	}
	if got := sources(p.find(blocks)); got != "HHH" {
		t.Errorf("reported %q the second time", got)
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
	if err := p.BeginSession(2); err != nil {
		t.Fatal(err)
	}
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

func TestPrefixMixesTiersAndEndsWhereNoSlotIsFree(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 6)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	p.find(blocks[:2])
	if got := sources(p.find(blocks)); got != "HHDDDD" {
		t.Errorf("found %q", got)
	}
	p.evictHost(blocks)
	// Six of the eight slots are granted: two are left for six blocks.
	if res, err := p.Grant(1, chain(7, 6), 0); err != nil || len(res.Grants) != 6 {
		t.Fatalf("%+v, %v", res, err)
	}
	res, err := p.Lookup(t.Context(), 1, blocks)
	if err != nil || sources(res.Sources) != "DD" || res.Coming != 0 {
		t.Errorf("found %q and %d coming, %v", sources(res.Sources), res.Coming, err)
	}
	p.check()
	if err := p.Unpin(1, res.Slots); err != nil {
		t.Fatal(err)
	}
}

func TestBlockOnDiskThatIsAskedForTwiceInOneCallIsReadOnce(t *testing.T) {
	p := diskPool(t, nil)
	block := p.onDisk(1, 1)[0]
	if got := sources(p.find([]Block{block, block})); got != "DD" {
		t.Errorf("found %q", got)
	}
	if st := p.Stats(); st.Promotions != 1 {
		t.Errorf("%d reads", st.Promotions)
	}
	p.check()
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
