package consolidator

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// dedupWire names blocks as the two sources do on their wires: each by hashes
// of its own, of which it knows the blocks that it has stored itself. It writes
// down what is published.
type dedupWire struct {
	*Dedup
	t     *testing.T
	named map[string]kv.SequenceHash // by source and name
	out   []string
}

func newDedupWire(t *testing.T) *dedupWire {
	return &dedupWire{Dedup: NewDedup(0), t: t, named: make(map[string]kv.SequenceHash)}
}

// id is the block that s calls name.
func (w *dedupWire) id(s DedupSource, name kv.EngineHash) kv.SequenceHash {
	id, ok := w.named[fmt.Sprint(s, name)]
	if !ok {
		w.t.Fatalf("source %d has stored no block %d", s, name)
	}
	return id
}

// store has s store a block of the given tokens; parent 0 is none.
func (w *dedupWire) store(s DedupSource, tier kv.Tier, name, parent kv.EngineHash, tokens ...uint32) {
	var h kv.Hasher
	local := h.Local(tokens, kv.HashSeed, nil)
	b := DedupBlock{ID: kv.SequenceHash(local), Name: name}
	if parent != 0 {
		b.Parent, b.ParentName, b.HasParent = w.id(s, parent), parent, true
		b.ID = kv.Chain(b.Parent, local)
	}
	w.named[fmt.Sprint(s, name)] = b.ID
	if stored, ok := w.Store(s, tier, b); ok {
		line := fmt.Sprint("store ", stored.Name)
		if stored.HasParent {
			line += fmt.Sprint(" after ", stored.Parent)
		}
		w.out = append(w.out, line)
	}
}

func (w *dedupWire) remove(s DedupSource, tier kv.Tier, name kv.EngineHash) {
	if removed, ok := w.Remove(s, tier, w.id(s, name)); ok {
		w.out = append(w.out, fmt.Sprint("remove ", removed))
	}
}

func (w *dedupWire) clear(s DedupSource, tier kv.Tier) {
	removed := w.Clear(s, tier)
	slices.Sort(removed)
	for _, name := range removed {
		w.out = append(w.out, fmt.Sprint("remove ", name))
	}
}

// published checks what was published since the last call.
func (w *dedupWire) published(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.out, want) {
		w.t.Errorf("published %q, want %q", w.out, want)
	}
	w.out = nil
}

func TestC8BlockOfTwoSourcesIsPublishedOnceAndUnderItsFirstName(t *testing.T) {
	w := newDedupWire(t)
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.published("store 11")
	w.store(DedupPool, kv.TierHost, 21, 0, 1, 2, 3, 4)
	w.published()
	w.remove(DedupEngine, kv.TierDevice, 11)
	w.published()
	w.remove(DedupPool, kv.TierHost, 21)
	w.published("remove 11")
	if got, want := w.Stats(), (DedupStats{Stored: 1, Removed: 1, Repeated: 1, Kept: 1}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}

func TestC8UnknownRemovePublishesNothingAndIsCounted(t *testing.T) {
	w := newDedupWire(t)
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.remove(DedupEngine, kv.TierHost, 11) // not there
	if name, ok := w.Remove(DedupPool, kv.TierDevice, w.id(DedupEngine, 11)); ok {
		t.Errorf("removed %d, which only the engine has", name)
	}
	if name, ok := w.Remove(DedupEngine, kv.TierDevice, 99); ok {
		t.Errorf("removed %d, which nobody has", name)
	}
	w.published("store 11")
	if n := w.Stats().UnknownRemoves; n != 3 {
		t.Errorf("%d unknown removals, want 3", n)
	}
}

func TestC8ParentIsPublishedUnderItsFirstNameWhoeverNamesIt(t *testing.T) {
	w := newDedupWire(t)
	w.store(DedupPool, kv.TierDisk, 21, 0, 1, 2, 3, 4)
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.store(DedupEngine, kv.TierDevice, 12, 11, 5, 6, 7, 8)
	w.published("store 21", "store 12 after 21")
	// The first source has left; its name stays, until the last one leaves.
	w.remove(DedupPool, kv.TierDisk, 21)
	w.store(DedupEngine, kv.TierDevice, 13, 12, 9, 10, 11, 12)
	w.store(DedupEngine, kv.TierDevice, 14, 11, 0, 0, 0, 0)
	w.published("store 13 after 12", "store 14 after 21")
	w.remove(DedupEngine, kv.TierDevice, 11)
	w.published("remove 21")
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.published("store 11")
}

func TestC8ClearOfTheEngineTakesOnlyItsDeviceTier(t *testing.T) {
	w := newDedupWire(t)
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.store(DedupEngine, kv.TierDevice, 12, 11, 5, 6, 7, 8)
	w.store(DedupEngine, kv.TierDevice, 13, 12, 9, 10, 11, 12)
	w.store(DedupEngine, kv.TierHost, 13, 12, 9, 10, 11, 12) // the engine's own offload
	w.store(DedupPool, kv.TierHost, 21, 0, 1, 2, 3, 4)
	w.store(DedupPool, kv.TierDisk, 24, 21, 0, 0, 0, 0)
	w.published("store 11", "store 12 after 11", "store 13 after 12", "store 24 after 11")
	w.clear(DedupEngine, kv.TierDevice)
	w.published("remove 12")
	w.clear(DedupPool, kv.TierHost)
	w.clear(DedupPool, kv.TierDisk)
	w.clear(DedupEngine, kv.TierHost)
	w.published("remove 11", "remove 24", "remove 13")
	if n := w.Stats().Blocks; n != 0 {
		t.Errorf("%d blocks are left", n)
	}
}

// KVBM forgets a block that leaves the host, wherever else it has it.
func TestBlockThatLeavesTheHostWhileItIsOnDiskStays(t *testing.T) {
	w := newDedupWire(t)
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.store(DedupPool, kv.TierHost, 21, 0, 1, 2, 3, 4)
	w.store(DedupPool, kv.TierDisk, 21, 0, 1, 2, 3, 4)
	w.remove(DedupEngine, kv.TierDevice, 11)
	w.remove(DedupPool, kv.TierHost, 21)
	w.published("store 11")
	w.remove(DedupPool, kv.TierDisk, 21)
	w.published("remove 11")
}

// Engines cache a block twice when two requests compute it at once.
func TestBlockThatAnEngineHasTwiceIsRemovedWithTheSecondCopy(t *testing.T) {
	w := newDedupWire(t)
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.store(DedupEngine, kv.TierDevice, 11, 0, 1, 2, 3, 4)
	w.remove(DedupEngine, kv.TierDevice, 11)
	w.published("store 11")
	w.remove(DedupEngine, kv.TierDevice, 11)
	w.published("remove 11")
}

func TestBlockBehindOneThatNobodyHoldsKeepsItsSourcesNameForIt(t *testing.T) {
	w := newDedupWire(t)
	w.store(DedupPool, kv.TierHost, 21, 0, 1, 2, 3, 4)
	w.remove(DedupPool, kv.TierHost, 21)
	w.store(DedupPool, kv.TierHost, 22, 21, 5, 6, 7, 8)
	w.published("store 21", "remove 21", "store 22 after 21")
	if n := w.Stats().Orphans; n != 1 {
		t.Errorf("%d orphans, want 1", n)
	}
}

func TestDedupIsBoundedAndCountsWhatItDrops(t *testing.T) {
	d := NewDedup(1)
	block := DedupBlock{ID: 1, Name: 11}
	for range math.MaxUint16 + 2 {
		d.Store(DedupEngine, kv.TierDevice, block)
	}
	if _, ok := d.Store(DedupPool, kv.TierHost, DedupBlock{ID: 2, Name: 12}); ok {
		t.Error("a second block was published")
	}
	if s := d.Stats(); s.TableFull != 1 || s.RefOverflows != 2 || s.Blocks != 1 || s.Stored != 1 {
		t.Errorf("counted %+v", s)
	}
}

// The twin counts copies in one list of (block, source, tier).
func TestDedupAgreesWithATwinThatListsCopies(t *testing.T) {
	type place struct {
		id     kv.SequenceHash
		source DedupSource
		tier   kv.Tier
	}
	rapid.Check(t, func(t *rapid.T) {
		d := NewDedup(0)
		var copies []place
		first := make(map[kv.SequenceHash]kv.EngineHash)
		drawPlace := func(t *rapid.T) place {
			return place{
				kv.SequenceHash(rapid.Uint64Range(1, 5).Draw(t, "block")), DedupSource(rapid.IntRange(0, 1).Draw(t, "source")),
				rapid.SampledFrom(kv.Tiers[:]).Draw(t, "tier"),
			}
		}
		// gone takes the blocks of which there is no copy, and sorts their names.
		gone := func() (names []kv.EngineHash) {
			for id, name := range first {
				if !slices.ContainsFunc(copies, func(p place) bool { return p.id == id }) {
					names = append(names, name)
					delete(first, id)
				}
			}
			slices.Sort(names)
			return names
		}
		check := func(got, want []kv.EngineHash) {
			slices.Sort(got)
			if !slices.Equal(got, want) || d.Stats().Blocks != uint64(len(first)) {
				t.Fatalf("removed %v with %d blocks left, want %v and %d", got, d.Stats().Blocks, want, len(first))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				p := drawPlace(t)
				b := DedupBlock{ID: p.id, Name: kv.EngineHash(p.id)*10 + kv.EngineHash(p.source)}
				if b.HasParent = p.id > 1; b.HasParent {
					b.Parent, b.ParentName = p.id-1, b.Name-10
				}
				got, ok := d.Store(p.source, p.tier, b)
				_, known := first[p.id]
				if copies = append(copies, p); known == ok {
					t.Fatalf("published %v, want %v", ok, !known)
				}
				if known {
					return
				}
				first[p.id] = b.Name
				want := DedupStored{b.Name, b.ParentName, b.HasParent}
				if name, held := first[p.id-1]; held {
					want.Parent = name
				}
				if got != want {
					t.Fatalf("stored %+v, want %+v", got, want)
				}
			},
			"remove": func(t *rapid.T) {
				p := drawPlace(t)
				if i := slices.Index(copies, p); i >= 0 {
					copies = slices.Delete(copies, i, i+1)
				}
				var got []kv.EngineHash
				if name, ok := d.Remove(p.source, p.tier, p.id); ok {
					got = append(got, name)
				}
				check(got, gone())
			},
			"clear": func(t *rapid.T) {
				p := drawPlace(t)
				copies = slices.DeleteFunc(copies, func(c place) bool { return c.source == p.source && c.tier == p.tier })
				check(d.Clear(p.source, p.tier), gone())
			},
		})
	})
}

func TestDedupDoesNotAllocateForABlockThatItKnows(t *testing.T) {
	d := NewDedup(0)
	block := DedupBlock{ID: 1, Name: 11}
	d.Store(DedupPool, kv.TierDisk, block)
	if n := testing.AllocsPerRun(100, func() {
		d.Store(DedupEngine, kv.TierDevice, block)
		d.Remove(DedupEngine, kv.TierDevice, block.ID)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
