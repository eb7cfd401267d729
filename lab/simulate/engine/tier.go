package engine

import (
	"sort"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// tier is the host memory or the disk of a node. The production Evictor says what leaves.
type tier struct {
	sink     Sink
	order    policy.Evictor
	blocks   slots
	slots    []tierSlot
	capacity int
	ticks    uint64

	stored  []kvevent.StoredBlock
	removed []kv.SequenceHash
}

// tierSlot is one block. children are the blocks of the tier whose parent it is. The order has only
// blocks without children.
type tierSlot struct {
	hash, parent kv.SequenceHash
	children     int32
	tick         uint64
}

func newTier(capacity int, sink Sink) *tier {
	t := &tier{sink: sink, order: policy.NewLeafLRU(), blocks: newSlots(capacity), capacity: capacity}
	if capacity > 0 {
		t.order.AddExtent(0, uint32(capacity))
	}
	return t
}

// prefix returns how many leading blocks of a sequence the tier has.
func (t *tier) prefix(sequence []kv.SequenceHash) int {
	return held(sequence, &t.blocks)
}

// held returns how many leading blocks of a sequence have a slot. Both kinds of cache evict children
// before their parents, so that no block is there without the blocks before it.
func held(sequence []kv.SequenceHash, blocks *slots) int {
	return sort.Search(len(sequence), func(i int) bool { _, ok := blocks.get(sequence[i]); return !ok })
}

// use stores the missing blocks of a sequence and marks all of them as used now. It returns the
// number of stored blocks. Only the last block is marked: its ancestors take its tick when it leaves.
func (t *tier) use(locals []kv.LocalHash, sequence []kv.SequenceHash) (added int) {
	t.ticks++
	have := t.prefix(sequence)
	if have > 0 {
		at, _ := t.blocks.get(sequence[have-1])
		t.slots[at].tick = t.ticks
		t.place(at)
	}
	end := have
	for end < len(sequence) && t.add(sequence, end) {
		end++
	}
	t.stored = tellStored(t.sink, t.stored, locals, sequence, have, end)
	return end - have
}

// add stores block i of a sequence, whose parent is stored. It returns false without room.
func (t *tier) add(sequence []kv.SequenceHash, i int) bool {
	at := uint32(len(t.slots))
	if len(t.slots) < t.capacity {
		t.slots = append(t.slots, tierSlot{})
	} else {
		victim, ok := t.order.Victim()
		if !ok || t.slots[victim.Slot()].tick == t.ticks { // never an ancestor of the new block
			return false
		}
		at = victim.Slot()
		t.remove(at)
	}
	var parent kv.SequenceHash
	if i > 0 {
		parent = sequence[i-1]
	}
	t.slots[at] = tierSlot{hash: sequence[i], parent: parent, tick: t.ticks}
	t.blocks.put(sequence[i], at)
	if p, ok := t.blocks.get(parent); ok && i > 0 {
		t.slots[p].children++
		t.order.Remove(ref(p))
	}
	t.place(at)
	return true
}

// remove evicts the block of a slot. Its parent may become evictable.
func (t *tier) remove(at uint32) {
	s := &t.slots[at]
	t.order.Remove(ref(at))
	t.blocks.remove(s.hash)
	if p, ok := t.blocks.get(s.parent); ok {
		t.slots[p].tick = max(t.slots[p].tick, s.tick)
		if t.slots[p].children--; t.slots[p].children == 0 {
			t.place(p)
		}
	}
	t.removed = append(t.removed[:0], s.hash)
	t.sink.Removed(t.removed)
}

// place puts a slot without children into the order, at its tick.
func (t *tier) place(at uint32) {
	if s := &t.slots[at]; s.children == 0 {
		t.order.Place(ref(at), 0, s.tick)
	}
}

func ref(slot uint32) registry.Ref { return registry.MakeRef(0, slot) }
