package blockmgr

import (
	"context"
	"errors"
	"testing"
)

func TestCommittedBlockIsFoundAtOnceAndOnlyCommittedOnes(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	blocks := chain(1, 4)
	res, err := p.Grant(1, blocks, 0)
	if err != nil || len(res.Grants) != 4 {
		t.Fatalf("%+v, %v", res, err)
	}
	if again, _ := p.Grant(1, blocks, 0); again.Present != 4 {
		t.Errorf("blocks being filled are granted again: %+v", again)
	}
	if got := p.find(blocks); len(got) != 0 {
		t.Errorf("%d blocks are visible before commit", len(got))
	}
	for i := range 3 {
		p.write(res.Grants[i].Slot, p.content(&blocks[i], 0))
	}
	if err := p.Commit(1, []Slot{res.Grants[0].Slot, res.Grants[1].Slot, res.Grants[2].Slot}); err != nil {
		t.Fatal(err)
	}
	if got := sources(p.find(blocks)); got != "HHH" {
		t.Errorf("found %q, want HHH", got)
	}
	if err := p.Abort(1, []Slot{res.Grants[3].Slot}); err != nil {
		t.Fatal(err)
	}
	if got := p.tiersOf(blocks); got != "HHH-" {
		t.Errorf("resident %q", got)
	}
	if st := p.Stats(); st.HostHits != 3 || st.Misses != 5 || st.Committed != 3 || st.Aborted != 1 {
		t.Errorf("%+v", st)
	}
}

func TestCommitIsAllOrNothingAndChecksOwnership(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	if err := p.BeginSession(2); err != nil {
		t.Fatal(err)
	}
	mine, err := p.Grant(1, chain(1, 2), 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := p.Grant(2, chain(2, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := mine.Grants[0].Slot, mine.Grants[1].Slot, theirs.Grants[0].Slot
	older := a
	older.Generation--
	for name, slots := range map[string][]Slot{
		"another session's slot": {a, c},
		"a slot twice":           {a, a},
		"an older generation":    {older},
		"no such extent":         {{Extent: 9, Generation: 1}},
		"no such index":          {{Index: 1 << 20, Generation: 1}},
	} {
		if err := p.Commit(1, slots); !errors.Is(err, ErrBadSlot) {
			t.Errorf("commit of %s: %v", name, err)
		}
		if err := p.Abort(1, slots); !errors.Is(err, ErrBadSlot) {
			t.Errorf("abort of %s: %v", name, err)
		}
		if err := p.Unpin(1, slots); !errors.Is(err, ErrBadSlot) {
			t.Errorf("unpin of %s: %v", name, err)
		}
	}
	if st := p.Stats(); st.Host.Granted != 3 {
		t.Errorf("granted %d, want 3", st.Host.Granted)
	}
	if err := p.Commit(1, []Slot{a, b}); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(1, []Slot{a}); !errors.Is(err, ErrBadSlot) {
		t.Errorf("second commit: %v", err)
	}
	if err := p.Commit(3, nil); !errors.Is(err, ErrNoSession) {
		t.Errorf("unknown session: %v", err)
	}
}

func TestEvictionTakesTheColdestLeafFirstAndNeverAPinnedBlock(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	cold, warm := chain(1, 4), chain(2, 4)
	p.store(cold)
	p.store(warm)
	p.quiesce()
	if got := sources(p.find(cold[:2])); got != "HH" {
		t.Fatalf("found %q", got)
	}
	// The tails of cold are the oldest, then warm from its end.
	p.store(chain(3, 3))
	if got := p.tiersOf(cold) + " " + p.tiersOf(warm); got != "HH-- HHH-" {
		t.Errorf("resident %q", got)
	}
	p.quiesce()
	res, err := p.Lookup(t.Context(), 1, warm)
	if err != nil || len(res.Slots) != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	if n := p.store(chain(4, 8)); n != 5 {
		t.Errorf("%d blocks granted beside three pinned ones, want 5", n)
	}
	if got := p.tiersOf(warm); got != "HHH-" {
		t.Errorf("pinned blocks are %q", got)
	}
	if err := p.Unpin(1, res.Slots); err != nil {
		t.Fatal(err)
	}
	p.quiesce()
}

func TestGrantDoesNotEvictTheParentsOfWhatItGrants(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	blocks := chain(1, 6)
	p.store(blocks[:3])
	p.quiesce()
	res, err := p.Grant(1, blocks, 0)
	if err != nil || res.Present != 3 || len(res.Grants) != 1 || res.Refused != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if got := p.tiersOf(blocks); got != "HHH---" {
		t.Errorf("resident %q", got)
	}
}

func TestGrantedSlotsOfADeadSessionWaitUntilItIsGone(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	if err := p.BeginSession(2); err != nil {
		t.Fatal(err)
	}
	blocks := chain(1, 4)
	p.store(blocks[:1])
	if _, err := p.Lookup(t.Context(), 2, blocks[:1]); err != nil {
		t.Fatal(err)
	}
	res, err := p.Grant(2, blocks[1:], 0)
	if err != nil || len(res.Grants) != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	gone := make(chan struct{})
	p.EndSession(2, gone)
	p.EndSession(2, gone)
	p.quiesce()
	if st := p.Stats(); st.Host.Quarantined != 3 || st.Host.Active != 0 || st.Host.Inactive != 1 {
		t.Errorf("%+v", st.Host)
	}
	// The keys are not lost with the slots: another session may fill them.
	if n := p.store(chain(2, 4)); n != 1 {
		t.Errorf("%d granted, want the one slot that is not quarantined", n)
	}
	close(gone)
	waitFor(t, func() bool { return p.Stats().Host.Quarantined == 0 })
	if n := p.store(blocks[1:]); n != 3 {
		t.Errorf("%d granted after the processes are gone", n)
	}
	late, err := p.Grant(1, chain(5, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range late.Grants {
		for _, old := range res.Grants {
			if g.Slot == old.Slot {
				t.Error("a slot came back with the generation it had")
			}
		}
	}
	p.EndSession(1, nil)
	if st := p.Stats(); st.Host.Granted != 0 || st.Host.Quarantined != 0 {
		t.Errorf("after an orderly end: %+v", st.Host)
	}
	p.quiesce()
}

func TestPinsBeyondTheCapAreNotReported(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8), MaxPinsPerSession: 3})
	blocks := chain(1, 6)
	p.store(blocks)
	first, err := p.Lookup(t.Context(), 1, blocks[:2])
	if err != nil || len(first.Slots) != 2 {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := p.Lookup(t.Context(), 1, blocks)
	if err != nil || len(second.Slots) != 1 {
		t.Fatalf("%+v, %v", second, err)
	}
	if st := p.Stats(); st.Pins != 3 || st.PinsRefused != 1 {
		t.Errorf("%+v", st)
	}
	// The first block is pinned twice and each pin counts.
	if err := p.Unpin(1, second.Slots); err != nil {
		t.Fatal(err)
	}
	if err := p.Unpin(1, first.Slots); err != nil {
		t.Fatal(err)
	}
	if err := p.Unpin(1, first.Slots[:1]); !errors.Is(err, ErrBadSlot) {
		t.Errorf("unpinned once too often: %v", err)
	}
	if got := sources(p.find(blocks[:3])); got != "HHH" {
		t.Errorf("found %q", got)
	}
	p.quiesce()
}

func TestPoolWithoutTiersIsOff(t *testing.T) {
	p := newTestPool(t, Config{})
	if p.Enabled() || len(p.Extents()) != 0 {
		t.Error("the pool is on")
	}
	blocks := chain(1, 2)
	if res, err := p.Grant(1, blocks, 0); err != nil || res.Refused != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := p.Lookup(t.Context(), 1, blocks); err != nil || len(res.Slots) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if err := p.Unpin(1, []Slot{{}}); !errors.Is(err, ErrBadSlot) {
		t.Errorf("unpin: %v", err)
	}
	p.EndSession(1, nil)
	p.quiesce()
}

func TestHostTierGrowsOnDemandToItsSizeAndWatchersSeeEveryExtent(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: 3 * hostBytes(4), ExtentBytes: hostBytes(4)})
	ch, stop := p.WatchExtents()
	if n := len(p.Extents()); n != 1 {
		t.Fatalf("%d extents at start", n)
	}
	for i := range 12 {
		p.store(chain(uint64(i), 1))
		p.quiesce()
	}
	if st := p.Stats(); st.Host.Capacity != 12 || st.Host.Extents != 3 || st.HostEvictions != 0 || st.GrowErrors != 0 {
		t.Errorf("%+v", st)
	}
	ids := map[uint32]bool{}
	for range 3 {
		ids[(<-ch).ID] = true
	}
	stop()
	stop()
	if _, open := <-ch; open || len(ids) != 3 {
		t.Errorf("%d extents seen, open %v", len(ids), open)
	}
	late, _ := p.WatchExtents()
	if len(late) != 3 {
		t.Errorf("a late watcher sees %d extents", len(late))
	}
	for i := range 12 {
		if got := sources(p.find(chain(uint64(i), 1))); got != "H" {
			t.Errorf("chain %d: %q", i, got)
		}
	}
}

// A prompt longer than the tier keeps its beginning there, which is the part
// that can be found again, however it is offered.
func TestSequenceLongerThanTheTiersKeepsItsPrefix(t *testing.T) {
	for _, step := range []int{1, 4, 24} {
		p := newTestPool(t, Config{HostBytes: hostBytes(8)})
		blocks := chain(1, 24)
		p.store(chain(2, 3)) // somebody else's, which may go
		p.quiesce()
		for i := 0; i < len(blocks); i += step {
			p.store(blocks[i : i+step])
			p.quiesce()
		}
		if got := p.tiersOf(blocks[:9]); got != "HHHHHHHH-" || len(p.find(blocks)) != 8 {
			t.Errorf("%d at a time: resident %q", step, got)
		}
		if st := p.Stats(); st.Refused != 16 {
			t.Errorf("%d blocks refused, want 16", st.Refused)
		}
	}
}

// A cancelled wait leaves nothing behind, and Idle does not wait at all.
func TestQuiesceForgetsWhoGaveUp(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	if !p.Idle() {
		t.Error("a fresh pool is busy")
	}
	p.mu.Lock()
	p.pending.operations++
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		if err := p.Quiesce(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("quiesce: %v", err)
		}
	}
	idle := p.Idle()
	p.mu.Lock()
	waiting := len(p.pending.waiting)
	p.doneLocked(1)
	p.mu.Unlock()
	if idle || waiting != 0 || !p.Idle() {
		t.Errorf("idle %v while busy, %d waiting, then idle %v", idle, waiting, p.Idle())
	}
}
