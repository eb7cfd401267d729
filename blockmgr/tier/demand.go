package tier

import (
	"encoding/binary"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// The eviction orders learn here, and nowhere else, which blocks their tiers have and which blocks
// are asked for.

// enter tells the eviction order that a slot has a block. It precedes the slot's place in the order.
func (set *Set) enter(t *Tier, ref registry.Ref, s *Slot) {
	key := &set.Registry.At(s.Entry).Key
	t.evictionOrder.Enter(ref, set.parentSlot(t, s), binary.LittleEndian.Uint64(key[:])^uint64(key[19]))
	s.entered = true
}

// leave tells the eviction order that the block of a slot has left the tier.
func (t *Tier) leave(ref registry.Ref, s *Slot) {
	t.evictionOrder.Leave(ref)
	s.entered = false
}

// parentSlot returns the slot that the parent of a slot's block has in the same tier, or NoRef.
func (set *Set) parentSlot(t *Tier, s *Slot) registry.Ref {
	if parent := set.Registry.At(s.Entry).Parent; parent != registry.None {
		return set.Registry.At(parent).Slots[t.Level]
	}
	return registry.NoRef
}

// Touch records that a resident block was asked for, once for each Tick. It tells the eviction order
// of every tier that has the block: a block that host memory serves is worth its place on disk. It
// makes the block the most recently used one of the first tier in which the block is resident. A disk
// copy takes over the age of the host copy later; see victim and AgeDiskCopy. Touch returns false if the
// block is resident in no tier.
func (set *Set) Touch(id registry.ID) (resident bool) {
	slots := set.Registry.At(id).Slots
	for lv, ref := range slots {
		if ref == registry.NoRef {
			continue
		}
		t := set.Tier(registry.Level(lv))
		s := t.Slot(ref)
		if !s.Resident() {
			continue
		}
		if s.Tick != set.clock {
			set.tellUse(slots)
			set.age(t, ref, s, set.clock)
		}
		return true
	}
	return false
}

// tellUse tells the eviction order of each tier with a slot for a block that the block was asked for.
func (set *Set) tellUse(slots [registry.NumLevels]registry.Ref) {
	for lv, ref := range slots {
		if ref != registry.NoRef {
			set.Tier(registry.Level(lv)).evictionOrder.Hit(ref)
		}
	}
}

// orderRecovered adds recovered blocks to the eviction order: the least recently used one first, and
// each after its ancestors, as if they had been stored in that order.
func (set *Set) orderRecovered(t *Tier, refs []registry.Ref) {
	if t.rule != policy.RuleLRU { // LeafLRU's order follows from the ticks alone
		byAge := make([]uint64, len(refs))
		for i, ref := range refs {
			byAge[i] = t.Slot(ref).Tick>>recencyShift<<32 | uint64(ref)
		}
		slices.Sort(byAge)
		for i, ageAndRef := range byAge {
			refs[i] = registry.Ref(ageAndRef & (1<<32 - 1))
		}
	}
	var line []registry.Ref // a block and those of its ancestors that the order does not know
	for _, ref := range refs {
		line = line[:0]
		for ref != registry.NoRef && !t.Slot(ref).entered {
			line = append(line, ref)
			ref = set.parentSlot(t, t.Slot(ref))
		}
		for _, ref := range slices.Backward(line) {
			set.enter(t, ref, t.Slot(ref))
		}
	}
	for _, ref := range refs {
		set.UpdateEvictable(t, ref, t.Slot(ref))
	}
}

// appendSealed appends the slots of an extent that have a sealed block.
func (e *Extent) appendSealed(refs []registry.Ref) []registry.Ref {
	for i := range e.Slots {
		if e.Slots[i].State == storage.StateSealed {
			refs = append(refs, registry.MakeRef(e.Number, uint32(i)))
		}
	}
	return refs
}
