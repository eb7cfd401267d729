package blockmgr

import (
	"context"
	"errors"
	"testing"
)

func TestCommitIsAllOrNothingAndChecksOwnership(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8)})
	noError(t, p.BeginSession(2))
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
	noError(t, p.Commit(1, []Slot{a, b}))
	if err := p.Commit(1, []Slot{a}); !errors.Is(err, ErrBadSlot) {
		t.Errorf("second commit: %v", err)
	}
	if err := p.Commit(3, nil); !errors.Is(err, ErrNoSession) {
		t.Errorf("unknown session: %v", err)
	}
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
