package groups

import (
	"iter"
	"math/bits"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Block is a block of a KV group. Hash names the block of the primary group at which it ends.
type Block struct {
	Hash  kv.SequenceHash
	Group uint32
}

// Limits of the numbers in an entry.
const (
	// MaxGroup is the highest number of a group.
	MaxGroup = 1<<8 - 1
	// MaxOwner is the highest number of an owner.
	MaxOwner = 1<<32 - 1
)

// entry says in which tiers an owner holds a block of a group. 0 is a slot that was never used. An
// entry without tiers keeps its slot for the same block, group and owner.
type entry uint64

func newEntry(owner, group uint32, tiers kv.TierMask) entry {
	return entry(uint64(owner)<<16 | uint64(group)<<8 | uint64(tiers))
}

func (e entry) owner() uint32      { return uint32(e >> 16) }
func (e entry) group() uint32      { return uint32(e >> 8 & MaxGroup) }
func (e entry) tiers() kv.TierMask { return kv.TierMask(e & 0xff) }

// slot is an element of the hash table. The writer stores hash before the first entry, so that a
// reader who sees the entry sees its hash.
type slot struct {
	hash  atomic.Uint64
	entry atomic.Uint64
}

// slotBytes is the size of a slot.
const slotBytes = 16

// leastSlots is the size of the first table.
const leastSlots = 64

// Table has the owners of blocks. The zero value is empty.
type Table struct {
	slots atomic.Pointer[[]slot]
	// used counts slots that have an entry, live those whose entry has a tier.
	used, live int
}

// Bytes returns the memory of the table.
func (t *Table) Bytes() int64 { return int64(len(t.current())) * slotBytes }

func (t *Table) current() []slot {
	if s := t.slots.Load(); s != nil {
		return *s
	}
	return nil
}

// place returns the first slot of the probe for a hash. Hashes of blocks need no further mixing.
func place(slots []slot, h kv.SequenceHash) int { return int(uint64(h) & uint64(len(slots)-1)) }

// Store records that an owner, from 1, holds a block in a tier. added is false when the table has
// that already. ok is false, and nothing changes, when a larger table is needed and mayGrow does
// not allow its bytes.
func (t *Table) Store(b Block, owner uint32, tier kv.Tier, mayGrow func(bytes int64) bool) (added, ok bool) {
	if s := t.find(b, owner); s != nil {
		e := entry(s.entry.Load())
		if e.tiers().Has(tier) {
			return false, true
		}
		if e.tiers() == 0 {
			t.live++
		}
		s.entry.Store(uint64(newEntry(owner, b.Group, e.tiers().With(tier))))
		return true, true
	}
	if !t.makeRoom(mayGrow) {
		return false, false
	}
	insert(t.current(), b.Hash, newEntry(owner, b.Group, kv.TierMask(0).With(tier)))
	t.used++
	t.live++
	return true, true
}

// find returns the slot of a block and owner, nil without one.
func (t *Table) find(b Block, owner uint32) *slot {
	slots := t.current()
	if len(slots) == 0 {
		return nil
	}
	for i := place(slots, b.Hash); ; i = (i + 1) & (len(slots) - 1) {
		e := entry(slots[i].entry.Load())
		if e == 0 {
			return nil
		}
		if e.owner() == owner && e.group() == b.Group && kv.SequenceHash(slots[i].hash.Load()) == b.Hash {
			return &slots[i]
		}
	}
}

// makeRoom makes room for one more slot. It builds a new table when too many slots are used, of
// twice the live slots at least.
func (t *Table) makeRoom(mayGrow func(bytes int64) bool) bool {
	old := t.current()
	if (t.used+1)*4 <= len(old)*3 {
		return true
	}
	n := max(leastSlots, 1<<bits.Len(uint(2*t.live)))
	if n > len(old) && !mayGrow(int64(n-len(old))*slotBytes) {
		n = len(old)
		switch {
		case (t.used+1)*8 <= n*7: // probes get longer, but end
			return true
		case t.used-t.live < max(1, n/8): // a rebuild would make room for few changes only
			return false
		}
	}
	fresh := make([]slot, n)
	for i := range old {
		if e := entry(old[i].entry.Load()); e.tiers() != 0 {
			insert(fresh, kv.SequenceHash(old[i].hash.Load()), e)
		}
	}
	t.used = t.live
	t.slots.Store(&fresh)
	return true
}

// insert writes an entry into the first unused slot of the probe for h.
func insert(slots []slot, h kv.SequenceHash, e entry) {
	i := place(slots, h)
	for slots[i].entry.Load() != 0 {
		i = (i + 1) & (len(slots) - 1)
	}
	slots[i].hash.Store(uint64(h))
	slots[i].entry.Store(uint64(e))
}

// Remove records that an owner no longer holds a block in a tier. It returns false when the owner
// did not.
func (t *Table) Remove(b Block, owner uint32, tier kv.Tier) bool {
	s := t.find(b, owner)
	if s == nil {
		return false
	}
	e := entry(s.entry.Load())
	if !e.tiers().Has(tier) {
		return false
	}
	t.setTiers(s, e, e.tiers().Without(tier))
	return true
}

// setTiers replaces the tiers of entry e in slot s.
func (t *Table) setTiers(s *slot, e entry, tiers kv.TierMask) {
	if tiers == 0 {
		t.live--
	}
	s.entry.Store(uint64(newEntry(e.owner(), e.group(), tiers)))
}

// DropOwner removes all blocks of an owner. It looks at every slot.
func (t *Table) DropOwner(owner uint32) {
	slots := t.current()
	for i := range slots {
		if e := entry(slots[i].entry.Load()); e.owner() == owner && e.tiers() != 0 {
			t.setTiers(&slots[i], e, 0)
		}
	}
	if t.live == 0 { // gives the memory back
		t.used = 0
		t.slots.Store(nil)
	}
}

// Holds reports whether an owner holds a block in any tier. Owner 0 holds none.
func (t *Table) Holds(b Block, owner uint32) bool {
	s := t.find(b, owner)
	return s != nil && entry(s.entry.Load()).tiers() != 0
}

// All yields each block with its owner and tiers, in no order.
func (t *Table) All() iter.Seq2[Block, Holder] {
	return func(yield func(Block, Holder) bool) {
		slots := t.current()
		for i := range slots {
			e := entry(slots[i].entry.Load())
			if e.tiers() == 0 {
				continue
			}
			b := Block{kv.SequenceHash(slots[i].hash.Load()), e.group()}
			if !yield(b, Holder{e.owner(), e.tiers()}) {
				return
			}
		}
	}
}

// Holder is an owner of a block, and the tiers in which it has the block.
type Holder struct {
	Owner uint32
	Tiers kv.TierMask
}
