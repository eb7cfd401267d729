package evict

import (
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Access is one request: its prompt is looked up, and prompt and answer are stored.
type Access struct {
	Sequence []kv.SequenceHash
	// Prompt is the number of blocks of Sequence that are looked up.
	Prompt int
}

// Cache is one tier with an Evictor.
type Cache struct {
	order    policy.Evictor
	blocks   map[kv.SequenceHash]uint32
	slots    []slot
	capacity int
	tick     uint64
}

// slot is a block. children counts the blocks of the cache whose parent the block is.
type slot struct {
	hash     kv.SequenceHash
	parent   registry.Ref
	children int
	tick     uint64
}

// NewCache returns an empty cache with room for capacity blocks, at least 1.
func NewCache(capacity int, order policy.Evictor) *Cache {
	order.AddExtent(0, uint32(capacity))
	return &Cache{order: order, blocks: make(map[kv.SequenceHash]uint32, capacity), capacity: capacity}
}

// Access serves and stores a request. It returns how many leading blocks of the prompt the cache had.
func (c *Cache) Access(a Access) (hits int) {
	c.tick++
	parent := registry.NoRef
	for hits < a.Prompt {
		at, ok := c.blocks[a.Sequence[hits]]
		if !ok {
			break
		}
		parent = registry.MakeRef(0, at)
		c.touch(parent)
		hits++
	}
	for _, hash := range a.Sequence[hits:] {
		at, ok := c.blocks[hash]
		if ok { // a part of an answer that was there already
			parent = registry.MakeRef(0, at)
			continue
		}
		if at, ok = c.room(parent); !ok {
			break
		}
		parent = c.store(at, parent, hash)
	}
	return hits
}

// touch marks a block as used.
func (c *Cache) touch(ref registry.Ref) {
	s := &c.slots[ref.Slot()]
	s.tick = c.tick
	c.order.Hit(ref)
	c.place(ref)
}

// place puts a block without children into the order.
func (c *Cache) place(ref registry.Ref) {
	if s := &c.slots[ref.Slot()]; s.children == 0 {
		c.order.Place(ref, 0, s.tick)
	}
}

// room returns a slot for a child of the block in slot parent, which does not leave.
func (c *Cache) room(parent registry.Ref) (at uint32, ok bool) {
	if len(c.slots) < c.capacity {
		c.slots = append(c.slots, slot{})
		return uint32(len(c.slots) - 1), true
	}
	if parent != registry.NoRef {
		c.order.Remove(parent)
		defer c.place(parent)
	}
	victim, ok := c.order.Victim()
	if !ok {
		return 0, false
	}
	s := &c.slots[victim.Slot()]
	c.order.Remove(victim)
	c.order.Leave(victim)
	delete(c.blocks, s.hash)
	if s.parent != registry.NoRef {
		p := &c.slots[s.parent.Slot()]
		p.tick = max(p.tick, s.tick)
		if p.children--; s.parent != parent {
			c.place(s.parent)
		}
	}
	return victim.Slot(), true
}

// store puts a block into a slot.
func (c *Cache) store(at uint32, parent registry.Ref, hash kv.SequenceHash) registry.Ref {
	ref := registry.MakeRef(0, at)
	c.slots[at] = slot{hash: hash, parent: parent, tick: c.tick}
	c.blocks[hash] = at
	if parent != registry.NoRef {
		c.slots[parent.Slot()].children++
		c.order.Remove(parent)
	}
	c.order.Enter(ref, parent, uint64(hash))
	c.place(ref)
	return ref
}
