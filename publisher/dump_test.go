package publisher

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

var testOwner = kv.WorkerOwner(kv.Worker{ID: 7})

// heldPlaces is what stored events add up to; it fails on a block that is there
// twice or that stands before its parent of the same dump.
func heldPlaces(t interface{ Fatalf(string, ...any) }, events []kvevent.RouterEvent) map[tierBlock]bool {
	held := make(map[tierBlock]bool)
	tiers := make(map[kv.SequenceHash]bool)
	for i := range events {
		for _, b := range events[i].Blocks {
			tiers[b.Hash] = tiers[b.Hash] || events[i].Group == 0
		}
	}
	seen := make(map[kv.SequenceHash]bool)
	for i := range events {
		e := &events[i]
		if e.Kind != kvevent.Stored || e.ID != uint64(i)+1 {
			t.Fatalf("event %d of a dump: %s with id %d", i, e.Kind, e.ID)
		}
		parent, hasParent := e.Parent, e.HasParent
		for at, b := range e.Blocks {
			if held[blockOf(e, b.Hash)] {
				t.Fatalf("block %d of group %d is in %s twice", b.Hash, e.Group, e.Tier)
			}
			held[blockOf(e, b.Hash)] = true
			if e.Group != 0 {
				if e.HasParent || e.HasStart {
					t.Fatalf("block %d of group %d has a place", b.Hash, e.Group)
				}
				continue
			}
			if hasParent && tiers[parent] && !seen[parent] {
				t.Fatalf("block %d stands before its parent %d", b.Hash, parent)
			}
			if want := parentOf(b.Hash); hasParent != (want != 0) || hasParent && parent != want {
				t.Fatalf("block %d is given the parent %d (%v), want %d", b.Hash, parent, hasParent, want)
			}
			if e.HasStart && e.StartPosition+uint32(at) != uint32(b.Hash%chainLength) {
				t.Fatalf("block %d is at position %d", b.Hash, e.StartPosition+uint32(at))
			}
			seen[b.Hash] = true
			parent, hasParent = b.Hash, true
		}
	}
	return held
}

// Chains of the model: block c*chainLength+i, c from 1, is the i-th of chain c.
const chainLength = 8

func parentOf(h kv.SequenceHash) kv.SequenceHash {
	if h%chainLength == 0 {
		return 0
	}
	return h - 1
}

// TestDumpsFollowTheTail: a dump that is brought up to date by events holds what a
// dump taken afterwards holds, in an order that a consumer can apply, whatever was
// stored, removed and stored again.
func TestDumpsFollowTheTail(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		held := make(map[tierBlock]bool)
		change := func(label string) (kvevent.RouterEvent, bool) {
			tier := kv.Tier(rapid.IntRange(0, 1).Draw(rt, label+" tier"))
			chain := kv.SequenceHash(rapid.IntRange(1, 3).Draw(rt, label+" chain") * chainLength)
			from := rapid.IntRange(0, chainLength-1).Draw(rt, label+" from")
			to := rapid.IntRange(from+1, chainLength).Draw(rt, label+" to")
			e := kvevent.RouterEvent{Owner: testOwner, Tier: tier, Kind: kvevent.Removed, Group: rapid.Uint32Range(0, 2).Draw(rt, label+" group")}
			if rapid.Bool().Draw(rt, label+" store") {
				e.Kind, e.HasStart = kvevent.Stored, e.Group == 0
			}
			for i := from; i < to; i++ {
				h := chain + kv.SequenceHash(i)
				at := blockOf(&e, h)
				switch {
				case e.Kind == kvevent.Removed && held[at]:
					delete(held, at)
					e.Removed = append(e.Removed, h)
				case e.Kind == kvevent.Stored && held[at] && len(e.Blocks) > 0:
					return e, true
				case e.Kind == kvevent.Stored && !held[at]:
					if parent := parentOf(h); len(e.Blocks) == 0 && e.Group == 0 {
						e.StartPosition, e.Parent, e.HasParent = uint32(h%chainLength), parent, parent != 0
					}
					held[at] = true
					e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
				}
			}
			return e, e.NumBlocks() > 0
		}
		draw := func(label string) (events []kvevent.RouterEvent) {
			for i := range rapid.IntRange(0, 12).Draw(rt, label) {
				if e, ok := change(fmt.Sprintf("%s %d", label, i)); ok {
					events = append(events, e)
				}
			}
			return events
		}
		before := applyTail(nil, draw("before"))
		heldPlaces(rt, before)
		after := applyTail(before, draw("tail"))
		got := heldPlaces(rt, after)
		if len(got) != len(held) {
			rt.Fatalf("%d blocks, want %d", len(got), len(held))
		}
		for at := range held {
			if !got[at] {
				rt.Fatalf("block %d is not in %s", at.hash, at.tier)
			}
		}
	})
}
