package index_test

import (
	"errors"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for _, o := range []index.Options{
		{MaxBytes: -1}, {MaxBytes: 1000}, {MaxOwners: -1}, {MaxOwners: 1 << 25}, {MaxParked: -1}, {MaxParked: 1 << 30},
	} {
		if _, err := index.New(o); err == nil {
			t.Errorf("options %+v were accepted", o)
		}
	}
}

// TestTooManyOwnersAreRefused: by events and as members, and without a trace.
func TestTooManyOwnersAreRefused(t *testing.T) {
	x := newIndex(t, index.Options{MaxOwners: 2})
	join(t, x, worker(1, 0), worker(2, 0))
	if err := x.SetMember(worker(3, 0), 0, true); !errors.Is(err, index.ErrFull) {
		t.Errorf("third owner of two: %v, want ErrFull", err)
	}
	if err := x.SetMember(worker(2, 0), 9, true); !errors.Is(err, index.ErrFull) {
		t.Errorf("a pool as third owner of two: %v, want ErrFull", err)
	}
	e := stored(kv.PoolOwner(1), kv.TierHost, series(1, 3), 0, 3)
	if err := x.Apply(&e); !errors.Is(err, index.ErrFull) {
		t.Errorf("an event of a third owner of two: %v, want ErrFull", err)
	}
	if err := x.Replace(kv.PoolOwner(1), []kvevent.RouterEvent{e}); !errors.Is(err, index.ErrFull) {
		t.Errorf("a dump of a third owner of two: %v, want ErrFull", err)
	}
	if s := x.Stats(); s.Owners != 2 || s.Workers != 2 || s.Refused != 4 || s.Memberships != 0 {
		t.Errorf("stats %+v, want 2 owners, 4 refused, nothing held", s)
	}
}

func TestInvalidEventsAreRefusedWhole(t *testing.T) {
	x := newIndex(t, index.Options{})
	o := kv.WorkerOwner(worker(1, 0))
	good := stored(o, kv.TierDevice, series(1, 2), 0, 2)
	for name, spoil := range map[string]func(*kvevent.RouterEvent){
		"tier":  func(e *kvevent.RouterEvent) { e.Tier = kv.NumTiers },
		"kind":  func(e *kvevent.RouterEvent) { e.Kind = 0 },
		"owner": func(e *kvevent.RouterEvent) { e.Owner.Kind = 9 },
	} {
		bad := good
		spoil(&bad)
		if err := x.Apply(&bad); err == nil {
			t.Errorf("event with a bad %s was applied", name)
		}
		if err := x.Replace(o, []kvevent.RouterEvent{good, bad}); err == nil {
			t.Errorf("dump with a bad %s was applied", name)
		}
	}
	removed := kvevent.RouterEvent{Owner: o, Kind: kvevent.Removed, Removed: []kv.SequenceHash{1}}
	if err := x.Replace(o, []kvevent.RouterEvent{removed}); err == nil {
		t.Error("dump with a removal was applied")
	}
	if s := x.Stats(); s.Memberships != 0 || s.Owners != 0 {
		t.Errorf("stats %+v, want an empty index", s)
	}
}

// TestMatchAllocatesNothingWhenReused: whatever the tiers and readings are.
func TestMatchAllocatesNothingWhenReused(t *testing.T) {
	x := newIndex(t, index.Options{})
	locals := series(1, 750)
	for n := range 40 {
		w := worker(n+1, 0)
		if err := x.SetMember(w, uint64(1+n%3), true); err != nil {
			t.Fatal(err)
		}
		apply(t, x, stored(kv.WorkerOwner(w), kv.TierDevice, locals, 0, 15*(n+1)),
			stored(kv.PoolOwner(uint64(1+n%3)), kv.TierHost, locals, 0, 100))
	}
	var m index.Matches
	for _, r := range []index.Reading{index.Continuation, index.Union} {
		x.Match(&m, locals, r)
		if n := testing.AllocsPerRun(100, func() { x.Match(&m, locals, r) }); n != 0 {
			t.Errorf("reading %d: %v allocations per Match, want none", r, n)
		}
	}
}

// TestBackwardsAndShuffledDumpsBecomeRuns: blocks that come one by one in an order
// of no use end up in few runs, as if they had come in order.
func TestBackwardsAndShuffledDumpsBecomeRuns(t *testing.T) {
	const n = 2000
	locals := series(1, n)
	o := kv.WorkerOwner(worker(1, 0))
	for name, at := range map[string]func(i int) int{
		"forwards":  func(i int) int { return i },
		"backwards": func(i int) int { return n - 1 - i },
		"in leaps":  func(i int) int { return i * 777 % n },
	} {
		x := newIndex(t, index.Options{})
		join(t, x, worker(1, 0))
		events := make([]kvevent.RouterEvent, n)
		for i := range events {
			events[i] = stored(o, kv.TierDevice, locals, at(i), at(i)+1)
		}
		if err := x.Replace(o, events); err != nil {
			t.Fatal(err)
		}
		var m index.Matches
		x.Match(&m, locals, index.Continuation)
		if len(m.Hits) != 1 || m.Hits[0].Hits[kv.TierDevice] != n {
			t.Errorf("%s: hits %v, want %d on the device", name, m.Hits, n)
		}
		if s := x.Stats(); s.Runs > n/16 || s.Parked != 0 || s.Memberships != n {
			t.Errorf("%s: %+v, want %d memberships in few runs", name, s, n)
		}
	}
}
