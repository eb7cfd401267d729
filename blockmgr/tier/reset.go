package tier

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// One slice of a reset looks at no more than resetScan slots and drops no more than
	// resetDrops blocks, in less than a millisecond.
	resetScan  = 16384
	resetDrops = 512
)

// Reset is the progress of a reset, which goes through the slots of its tiers slice by slice.
// The pool's lock is free between slices. Blocks that were stored before the reset are stale.
// Find and Current drop a stale block that they meet, so that no caller gets one. Blocks that
// are stored during the reset stay.
//
// A slice drops stale blocks from the head of the eviction order first, so that children go
// before their parents. A new block at the head, or a new child of a stale block, ends that:
// the other stale blocks go in the order of their slots.
type Reset struct {
	tiers []*Tier
	// tier, extent and slot are where the next slice begins.
	tier, extent, slot int
}

// Stale reports whether the slot's block was stored before the current reset. Without a
// current reset no block is stale.
func (t *Tier) Stale(s *Slot) bool { return s.Entry != registry.None && s.resetEpoch != t.resetEpoch }

// BeginReset makes every block of the tiers stale. None of their slots may be in use.
func (set *Set) BeginReset(tiers []*Tier) *Reset {
	for _, t := range tiers {
		t.resetEpoch = !t.resetEpoch
	}
	set.resetting = true
	return &Reset{tiers: tiers}
}

// ResetSlice drops some of the blocks that were stored before the reset, and goes on where the last
// slice ended. more says that others may be left.
func (set *Set) ResetSlice(r *Reset) (more bool) {
	drops := 0
	for scanned := 0; scanned < resetScan && drops < resetDrops; scanned++ {
		if r.tier == len(r.tiers) {
			set.resetting = false
			return false
		}
		t := r.tiers[r.tier]
		// Each step drops the coldest block, or looks at the next slot if the coldest is not stale.
		leaf, ok := t.evictionOrder.Victim()
		switch {
		case ok && t.Stale(t.Slot(leaf)):
			set.Discard(t, leaf)
			drops++
		case r.extent >= len(t.Extents):
			r.tier, r.extent, r.slot = r.tier+1, 0, 0
		case t.Extents[r.extent] == nil || r.slot >= len(t.Extents[r.extent].Slots):
			r.extent, r.slot = r.extent+1, 0
		default:
			ref := registry.MakeRef(uint32(r.extent), uint32(r.slot))
			if t.Stale(t.Slot(ref)) {
				set.Discard(t, ref)
				drops++
			}
			r.slot++
		}
	}
	return true
}

// Discard drops the block of a slot for a reset.
func (set *Set) Discard(t *Tier, ref registry.Ref) {
	set.Counters.BlocksReset++
	set.Drop(t, ref, storage.StateFree)
}

// Current drops those copies of an entry's block that a running reset is still to remove. It returns
// the entry, or None when no copy is left. Lookups call it, so that they find no such block.
func (set *Set) Current(id registry.ID) registry.ID {
	if id == registry.None || !set.resetting { // without a reset nothing is stale
		return id
	}
	var stale []*Tier
	left := 0
	for _, t := range set.Tiers() {
		ref := set.Registry.At(id).Slots[t.Level]
		switch {
		case ref == registry.NoRef:
		case t.Stale(t.Slot(ref)):
			stale = append(stale, t)
		default:
			left++
		}
	}
	for _, t := range stale {
		set.Discard(t, set.Registry.At(id).Slots[t.Level])
	}
	if len(stale) > 0 && left == 0 {
		return registry.None // the entry may be gone
	}
	return id
}

// Find returns the entry of a key, None when there is none. It drops stale copies.
func (set *Set) Find(key *kv.StoredKey) registry.ID {
	return set.Current(set.Registry.Find(key))
}

// HostSlot returns the host slot of a key, in any state; NoRef when there is none.
func (set *Set) HostSlot(key *kv.StoredKey) registry.Ref {
	id := set.Find(key)
	if id == registry.None {
		return registry.NoRef
	}
	return set.Registry.At(id).Slots[registry.Host]
}

// DiskSlot returns the disk slot of a key, which must have an entry; NoRef when there is none.
func (set *Set) DiskSlot(key *kv.StoredKey) registry.Ref {
	return set.Registry.At(set.Registry.Find(key)).Slots[registry.Disk]
}
