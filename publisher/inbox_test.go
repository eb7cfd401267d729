package publisher

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func idsOf(events []kvevent.RouterEvent) (ids []uint64) {
	for i := range events {
		ids = append(ids, events[i].ID)
	}
	return ids
}

func addTo(b *Inbox, ids ...uint64) {
	for _, id := range ids {
		b.Add([]kvevent.RouterEvent{storedEvent(id, 1)})
	}
}

// TestInboxResync: what a snapshot up to event 5 makes of what waits.
func TestInboxResync(t *testing.T) {
	for name, tc := range map[string]struct {
		before  []uint64
		in      bool
		left    []uint64
		dropped uint64
	}{
		"empty":                           {nil, true, nil, 0},
		"all in the snapshot":             {[]uint64{3, 4, 5}, true, nil, 0},
		"some follow":                     {[]uint64{4, 5, 6, 7}, true, []uint64{6, 7}, 0},
		"those behind a gap are included": {[]uint64{1, 4, 5, 6}, true, []uint64{6}, 3},
		"events between are gone":         {[]uint64{1, 8}, false, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewInbox(10, func() {})
			addTo(b, tc.before...)
			if in := b.Resync(5); in != tc.in || b.Lost() == tc.in {
				t.Errorf("follows the snapshot: %v, lost %v; want %v", in, b.Lost(), tc.in)
			}
			if got := idsOf(b.Take(nil, 100)); !slices.Equal(got, tc.left) {
				t.Errorf("left %v, want %v", got, tc.left)
			}
			if got := b.Stats().Dropped; got != tc.dropped {
				t.Errorf("dropped %d, want %d", got, tc.dropped)
			}
		})
	}
}

func TestInboxWakesOncePerTurn(t *testing.T) {
	wakes := 0
	b := NewInbox(10, func() { wakes++ })
	addTo(b, 1, 2)
	b.MarkDirty()
	if wakes != 1 {
		t.Errorf("woken %d times, want once", wakes)
	}
	if !b.Begin() || b.Begin() {
		t.Error("the mark is not reported exactly once")
	}
	b.Wake()
	if wakes != 2 {
		t.Errorf("woken %d times, want twice", wakes)
	}
	b.Begin()
	b.Close()
	addTo(b, 3)
	b.MarkDirty()
	if s := b.Stats(); wakes != 2 || s.Dropped != 2 || s.AfterClose != 1 {
		t.Errorf("after Close: woken %d times, %+v", wakes, s)
	}
}

func TestInboxOverflow(t *testing.T) {
	b := NewInbox(3, func() {})
	addTo(b, 1, 2, 3, 4)
	if s := b.Stats(); !b.Lost() || s.Overflows != 1 || s.Dropped != 3 || s.Waiting != 1 {
		t.Errorf("lost %v, %+v", b.Lost(), s)
	}
	if got := b.Take(nil, 4); len(got) != 0 {
		t.Errorf("took %v behind missing events", idsOf(got))
	}
	b = NewInbox(3, func() {})
	e := []kvevent.RouterEvent{storedEvent(1, inboxBlocks+1)}
	b.Add(e)
	if b.Lost() {
		t.Error("one event has no room")
	}
	e[0].Blocks[0].Hash = 0
	if got := b.Take(nil, 1); got[0].Blocks[0].Hash != 1000 {
		t.Error("the event was not copied")
	}
}

// TestInboxLosesNothingSilently: events that are neither taken nor in a snapshot make
// the inbox lossy, whatever happens in between.
func TestInboxLosesNothingSilently(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := NewInbox(4, func() {})
		take := func(last uint64) []kvevent.RouterEvent { return b.Take(nil, last) }
		if rapid.Bool().Draw(rt, "lends") {
			b = NewLendingInbox(4, func() {})
			take = func(uint64) []kvevent.RouterEvent { return b.TakeAll(nil) }
		}
		b.Resync(0)
		var made, known uint64 // the newest event; the newest that the goroutine has
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0, 1:
				made++
				addTo(b, made)
			case 2:
				for _, e := range take(rapid.Uint64Range(0, made).Draw(rt, "up to")) {
					if e.ID != known+1 || e.Blocks[0].Hash != storedEvent(e.ID, 1).Blocks[0].Hash {
						rt.Fatalf("took event %d after %d", e.ID, known)
					}
					known = e.ID
				}
			case 3:
				last := rapid.Uint64Range(known, made).Draw(rt, "snapshot")
				if b.Resync(last) {
					known = last
				}
			}
		}
		if !b.Lost() && known+uint64(b.Stats().Waiting) != made {
			rt.Fatalf("%d known, %d wait, %d made", known, b.Stats().Waiting, made)
		}
	})
}

// TestInboxLendsEventsUntilTheNextTake: events that were taken stay as they are while
// others come and are dropped, and their memory is used again.
func TestInboxLendsEventsUntilTheNextTake(t *testing.T) {
	b := NewLendingInbox(4, func() {})
	var events []kvevent.RouterEvent
	id := uint64(0)
	waiting := make([]kvevent.RouterEvent, 1)
	add := func() {
		id++
		waiting[0].ID, waiting[0].Blocks[0].Hash = id, kv.SequenceHash(id)
		b.Add(waiting)
	}
	waiting[0] = storedEvent(1, 3)
	allocs := testing.AllocsPerRun(100, func() {
		add()
		add()
		clear(events)
		events = b.TakeAll(events)
		first := id - 1
		for range 6 { // the inbox overflows
			add()
		}
		for i := range events {
			if want := first + uint64(i); events[i].ID != want || events[i].Blocks[0].Hash != kv.SequenceHash(want) {
				t.Fatalf("event %d of %d is %+v", i, first, events[i])
			}
		}
		b.Resync(id)
	})
	if len(events) != 2 || allocs != 0 {
		t.Errorf("took %d events, want 2; %v allocations a turn, want none", len(events), allocs)
	}
}
