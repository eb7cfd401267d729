package engine

import (
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// tier is the host memory or the disk of a node. The production Evictor says what leaves.
type tier struct {
	sink     Sink
	order    policy.Evictor
	blocks   slots
	slots    []tierSlot
	capacity int
	ticks    uint64

	removed []kv.SequenceHash
}

// tierSlot is one block. children are the blocks of the tier whose parent it is. The order has only
// blocks without children. parent is the number of the block before it, -1 at the start of a text.
type tierSlot struct {
	hash     kv.SequenceHash
	number   uint32
	parent   int64
	children int32
	tick     uint64
}

func newTier(capacity int, sink Sink) *tier {
	t := &tier{sink: sink, order: policy.NewLeafLRU(), capacity: capacity}
	if capacity > 0 {
		t.order.AddExtent(0, uint32(capacity))
	}
	return t
}

// use stores the missing blocks of a chain and marks all of them as used now. It returns the
// number of stored blocks. Only the last block is marked: its ancestors take its tick when it leaves.
func (t *tier) use(c Chain) (added int) {
	t.ticks++
	t.removed = t.removed[:0]
	have := t.blocks.prefix(c.Numbers)
	last := -1
	if have > 0 {
		at, _ := t.blocks.get(c.Numbers[have-1])
		t.slots[at].tick = t.ticks
		t.order.Remove(ref(at))
		last = int(at)
	}
	end := have
	for ; end < len(c.Numbers); end++ {
		at, ok := t.room()
		if !ok {
			break
		}
		s := tierSlot{hash: c.Blocks[end].Hash, number: c.Numbers[end], parent: -1, tick: t.ticks}
		if last >= 0 {
			if p := &t.slots[last]; p.children == 0 {
				t.order.Remove(ref(uint32(last))) // it had a child that has left
			}
			t.slots[last].children++
			s.parent = int64(t.slots[last].number)
		}
		t.slots[at] = s
		t.blocks.put(s.number, at)
		last = int(at)
	}
	if last >= 0 {
		t.place(uint32(last))
	}
	if len(t.removed) > 0 {
		t.sink.Removed(t.removed)
	}
	tellStored(t.sink, c, have, end)
	return end - have
}

// room returns a slot for a block of the present tick. It evicts no block of that tick.
func (t *tier) room() (at uint32, ok bool) {
	if len(t.slots) < t.capacity {
		t.slots = append(t.slots, tierSlot{})
		return uint32(len(t.slots) - 1), true
	}
	victim, ok := t.order.Victim()
	if !ok || t.slots[victim.Slot()].tick == t.ticks {
		return 0, false
	}
	t.remove(victim.Slot())
	return victim.Slot(), true
}

// remove evicts the block of a slot. Its parent may become evictable.
func (t *tier) remove(at uint32) {
	s := &t.slots[at]
	t.order.Remove(ref(at))
	t.blocks.remove(s.number)
	t.removed = append(t.removed, s.hash)
	if s.parent < 0 {
		return
	}
	if p, ok := t.blocks.get(uint32(s.parent)); ok {
		t.slots[p].tick = max(t.slots[p].tick, s.tick)
		if t.slots[p].children--; t.slots[p].children == 0 {
			t.place(p)
		}
	}
}

// place puts a slot without children into the order, at its tick.
func (t *tier) place(at uint32) {
	if s := &t.slots[at]; s.children == 0 {
		t.order.Place(ref(at), 0, s.tick)
	}
}

func ref(slot uint32) registry.Ref { return registry.MakeRef(0, slot) }
