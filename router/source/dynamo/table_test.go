package dynamo

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// play draws one change of a worker: stores below known blocks or at the root,
// with several names for equal content, removals of leaves, rarely a clear.
func play(t *rapid.T, w *fakeWorker) kvevent.RouterEvent {
	tier := rapid.SampledFrom([]kv.Tier{kv.TierDevice, kv.TierHost, kv.TierDisk}).Draw(t, "tier")
	kind := rapid.IntRange(0, 20).Draw(t, "kind")
	leaves := w.leaves()
	switch {
	case kind == 0:
		return w.clear()
	case kind < 8 && len(leaves) > 0:
		name := rapid.SampledFrom(leaves).Draw(t, "leaf")
		for _, have := range kv.Tiers {
			if w.blocks[name].tiers.Has(have) {
				return w.remove(have, name)
			}
		}
	}
	parents := append([]kv.SequenceHash{0}, slices.Sorted(maps.Keys(w.blocks))...)
	parent := rapid.SampledFrom(parents).Draw(t, "parent")
	var names []kv.SequenceHash
	var locals []kv.LocalHash
	above := parent
	for range rapid.IntRange(1, 3).Draw(t, "blocks") {
		l := kv.LocalHash(rapid.IntRange(1, 3).Draw(t, "content"))
		// A name says content and place, and which of two namings it is.
		above = kv.Chain(kv.Chain(above, l), kv.LocalHash(rapid.IntRange(0, 1).Draw(t, "naming")))
		names, locals = append(names, above), append(locals, l)
	}
	return w.storeNamed(tier, parent, names, locals)
}

func checkHeld(t interface{ Fatalf(string, ...any) }, what string, got, want held, tab *table) {
	if !maps.Equal(got, want) {
		t.Fatalf("%s: %d pairs, want %d:\n got %v\nwant %v", what, len(got), len(want), got, want)
	}
	if tab != nil && (tab.digest != want.digest() || tab.pairs != uint64(len(want))) {
		t.Fatalf("%s: digest %x of %d pairs, want %x of %d", what, tab.digest, tab.pairs, want.digest(), len(want))
	}
}

// TestTableTellsExactlyWhatChanges: whoever applies the changes that a table
// makes of a worker's events, or its dump, or what replacing it changes, holds
// what the worker holds; and so says the digest.
func TestTableTellsExactlyWhatChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		room := budget{free: 1000}
		counters := new(Counters)
		w, tab := newFakeWorker(kv.Worker{ID: 7}, 8), newTable(&room, counters)
		consumer := make(held)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			if rapid.IntRange(0, 15).Draw(t, "replace") == 0 {
				other := newFakeWorker(w.worker, 8)
				for range rapid.IntRange(0, 12).Draw(t, "other") {
					play(t, other)
				}
				w = other
				consumer.apply(tab.replace(nil, w.dump()))
			} else {
				e := play(t, w)
				consumer.apply(tab.apply(nil, &e))
			}
			checkHeld(t, "changes", consumer, w.truth(), tab)
			if n := len(tab.entries); n != len(w.blocks) || room.free != 1000-n {
				t.Fatalf("%d entries and room for %d, want %d", n, room.free, len(w.blocks))
			}
		}
		again := make(held)
		dump := tab.dump(nil, nil)
		for _, e := range dump {
			if e.HasParent != (e.StartPosition > 0) {
				t.Fatalf("run at position %d: has a parent: %v", e.StartPosition, e.HasParent)
			}
		}
		again.apply(dump)
		checkHeld(t, "dump", again, w.truth(), nil)
		if *counters != (Counters{}) {
			t.Fatalf("counters %+v, want none", *counters)
		}
	})
}

func TestTableLeavesOutWhatItCannotPlace(t *testing.T) {
	room := budget{free: 2}
	counters := new(Counters)
	tab := newTable(&room, counters)
	store := func(parent kv.SequenceHash, start uint32, blocks ...kvevent.StoredBlock) int {
		e := kvevent.RouterEvent{Kind: kvevent.Stored, Parent: parent, HasParent: parent != 0, StartPosition: start, HasStart: true, Blocks: blocks}
		n := 0
		for _, c := range tab.apply(nil, &e) {
			n += c.NumBlocks()
		}
		return n
	}
	if n := store(99, 1, kvevent.StoredBlock{Hash: 1, Local: 1}) + store(0, 3, kvevent.StoredBlock{Hash: 1, Local: 1}); n != 0 {
		t.Errorf("%d blocks of unknown place were stored", n)
	}
	if n := store(0, 0, []kvevent.StoredBlock{{Hash: 1, Local: 1}, {Hash: 2, Local: 2}, {Hash: 3, Local: 3}}...); n != 2 {
		t.Errorf("%d blocks were stored where there is room for 2", n)
	}
	if n := store(0, 0, kvevent.StoredBlock{Hash: 1, Local: 8}); n != 2 {
		t.Errorf("%d changes for a name that stands for another block now, want its removal and a store", n)
	}
	e := kvevent.RouterEvent{Kind: kvevent.Removed, Removed: []kv.SequenceHash{77}}
	tab.apply(nil, &e)
	if want := (Counters{Orphans: 2, Refused: 1, Renamed: 1, UnknownRemovals: 1}); *counters != want {
		t.Errorf("counters %+v, want %+v", *counters, want)
	}
	if tab.holes != 3 {
		t.Errorf("%d holes, want 3: the table does not hold all that the worker has", tab.holes)
	}
}
