package merge_test

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/merge"
)

// cell is a block that an owner holds in a tier of a KV group.
type cell struct {
	owner kv.Owner
	tier  kv.Tier
	group uint32
	hash  kv.SequenceHash
}

// sets is what owners hold, and the parent that each stored block was told with.
type sets struct {
	held    map[cell]bool
	parents map[kv.SequenceHash]kv.SequenceHash
}

func newSets() sets { return sets{make(map[cell]bool), make(map[kv.SequenceHash]kv.SequenceHash)} }

func (s sets) apply(events []kvevent.RouterEvent) {
	for _, e := range events {
		if e.Kind == kvevent.Cleared {
			maps.DeleteFunc(s.held, func(c cell, _ bool) bool { return c.owner == e.Owner })
		}
		for _, h := range e.Removed {
			delete(s.held, cell{e.Owner, e.Tier, e.Group, h})
		}
		parent := e.Parent
		for _, b := range e.Blocks {
			s.held[cell{e.Owner, e.Tier, e.Group, b.Hash}] = true
			s.parents[b.Hash] = parent
			parent = b.Hash
		}
	}
}

func blocks(first, n int) (list []kvevent.StoredBlock) {
	for i := range n {
		list = append(list, kvevent.StoredBlock{Hash: kv.SequenceHash(first + i), Local: kv.LocalHash(first + i)})
	}
	return list
}

func drawEvent(t *rapid.T) kvevent.RouterEvent {
	owners := []kv.Owner{kv.PoolOwner(1), kv.PoolOwner(1), kv.PoolOwner(1), kv.PoolOwner(2)}
	e := kvevent.RouterEvent{
		Owner: rapid.SampledFrom(owners).Draw(t, "owner"), Tier: kv.Tier(rapid.IntRange(0, 9).Draw(t, "tier") / 9),
		Group: uint32(rapid.IntRange(0, 19).Draw(t, "group") / 19),
	}
	first, n := rapid.IntRange(1, 100).Draw(t, "first"), rapid.SampledFrom([]int{0, 1, 1, 1, 2, 5, 40, 300}).Draw(t, "blocks")
	switch kind := rapid.IntRange(0, 20).Draw(t, "kind"); {
	case kind < 10:
		e.Kind, e.Blocks = kvevent.Stored, blocks(first, n)
		e.Parent, e.HasParent = kv.SequenceHash(first-1), first > 1
	case kind < 20:
		e.Kind = kvevent.Removed
		for _, b := range blocks(first, n) {
			e.Removed = append(e.Removed, b.Hash)
		}
	default:
		e.Kind = kvevent.Cleared
	}
	return e
}

// TestModel: merged events leave every owner with what the events leave it with, and no removal comes before a
// store of the message that needs the removed block.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(drawEvent), 1, 60).Draw(t, "events")
		var m merge.Merger
		one, merged := newSets(), newSets()
		for rest := events; len(rest) > 0; {
			n := m.Take(rest)
			if n < 1 || n > len(rest) {
				t.Fatalf("%d of %d events taken", n, len(rest))
			}
			one.apply(rest[:n])
			for i, e := range m.Events {
				needed := func(s kvevent.RouterEvent) bool {
					return s.HasParent && slices.Contains(e.Removed, s.Parent) && removedAfter(rest[:n], s.Parent)
				}
				if slices.ContainsFunc(m.Events[i:], needed) {
					t.Fatal("the parent of a store is removed before the store")
				}
			}
			merged.apply(m.Events)
			if !maps.Equal(one.held, merged.held) || !maps.Equal(one.parents, merged.parents) {
				t.Fatalf("after %d of %d events:\n%v\nwant\n%v", n, len(rest), merged, one)
			}
			rest = rest[n:]
		}
	})
}

// removedAfter reports whether the first event that names h as a parent comes before the removal of h.
func removedAfter(events []kvevent.RouterEvent, h kv.SequenceHash) bool {
	parent := slices.IndexFunc(events, func(e kvevent.RouterEvent) bool { return e.HasParent && e.Parent == h })
	return parent >= 0 && slices.ContainsFunc(events[parent:], func(e kvevent.RouterEvent) bool { return slices.Contains(e.Removed, h) })
}

// TestOneRemovalAndOneStore: events of one block, as an engine with a full cache tells them, become two events.
func TestOneRemovalAndOneStore(t *testing.T) {
	var events []kvevent.RouterEvent
	for i := range 64 {
		events = append(events,
			kvevent.RouterEvent{Owner: kv.PoolOwner(1), Kind: kvevent.Removed, Removed: []kv.SequenceHash{kv.SequenceHash(1e6 + i)}},
			kvevent.RouterEvent{Owner: kv.PoolOwner(1), Kind: kvevent.Stored, Blocks: blocks(2+i, 1), Parent: kv.SequenceHash(1 + i), HasParent: true})
	}
	var m merge.Merger
	if n := m.Take(events); n != len(events) || len(m.Events) != 2 || len(m.Events[0].Removed) != 64 || len(m.Events[1].Blocks) != 64 {
		t.Errorf("%d of %d events taken, merged into %d", n, len(events), len(m.Events))
	}
}

// TestTakeAllocatesNothing: a Merger uses its memory again.
func TestTakeAllocatesNothing(t *testing.T) {
	var events []kvevent.RouterEvent
	for i := range 100 {
		events = append(events, kvevent.RouterEvent{Owner: kv.PoolOwner(1), Kind: kvevent.Stored, Blocks: blocks(2+i, 1), Parent: kv.SequenceHash(1 + i), HasParent: true})
	}
	var m merge.Merger
	m.Take(events)
	if n := testing.AllocsPerRun(10, func() { m.Take(events) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTakeIsBounded: events without blocks count too, so that one message neither locks an index for long nor
// makes a Merger large for good.
func TestTakeIsBounded(t *testing.T) {
	var m merge.Merger
	empty := kvevent.RouterEvent{Owner: kv.PoolOwner(1), Kind: kvevent.Stored}
	if n := m.Take(slices.Repeat([]kvevent.RouterEvent{empty}, 10_000)); n > 256 {
		t.Errorf("%d events without blocks taken", n)
	}
}
