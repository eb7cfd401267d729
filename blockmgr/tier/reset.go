package tier

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// resetScan is how many slots one slice of a reset looks at, resetDrops how many
	// blocks it drops at most: well under a millisecond's work.
	resetScan  = 16384
	resetDrops = 512
)

// Reset is a reset under way. It goes through the slots of its tiers slice by slice,
// and others have the pool's lock in between. What was stored before it began is
// stale. Find and Current drop a stale block, so that nobody finds one and nobody can
// hold one. Blocks that are stored meanwhile stay.
//
// As long as the block to evict first is stale it is the next one to go, so that
// children go before their parents. Blocks stored meanwhile may come before stale ones
// in the eviction order, or after them in their sequence: the rest goes in the order
// of the slots.
type Reset struct {
	tiers []*Tier
	// tier, extent and slot are where the next slice begins.
	tier, extent, slot int
}

// Stale reports whether the slot's block was stored before the reset that is under
// way. Between resets no block is stale.
func (t *Tier) Stale(s *Slot) bool { return s.Entry != registry.None && s.epoch != t.epoch }

// BeginReset makes every block of the tiers stale. None of their slots may be in use.
func (set *Set) BeginReset(tiers []*Tier) *Reset {
	for _, t := range tiers {
		t.epoch = !t.epoch
	}
	set.resetting = true
	return &Reset{tiers: tiers}
}

// ResetSlice drops some of the stale blocks and reports whether there may be more.
func (set *Set) ResetSlice(r *Reset) (more bool) {
	drops := 0
	for scanned := 0; scanned < resetScan && drops < resetDrops; scanned++ {
		if r.tier == len(r.tiers) {
			set.resetting = false
			return false
		}
		t := r.tiers[r.tier]
		leaf, ok := t.order.Victim()
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

// Discard drops a block because of a reset.
func (set *Set) Discard(t *Tier, ref registry.Ref) {
	set.Counters.BlocksReset++
	set.Drop(t, ref, storage.StateFree)
}

// Current drops the stale copies of an entry's block and returns the entry, None
// when no copy is left.
func (set *Set) Current(id registry.ID) registry.ID {
	if id == registry.None || !set.resetting {
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

// Find is the entry of a key, without stale copies; None when there is none.
func (set *Set) Find(key *kv.StoredKey) registry.ID {
	return set.Current(set.Registry.Find(key))
}

// HostSlot is the host slot of a key, in whatever state; NoRef when there is none.
func (set *Set) HostSlot(key *kv.StoredKey) registry.Ref {
	id := set.Find(key)
	if id == registry.None {
		return registry.NoRef
	}
	return set.Registry.At(id).Slots[registry.Host]
}

// DiskSlot is the disk slot of a key that has an entry; NoRef when there is none.
func (set *Set) DiskSlot(key *kv.StoredKey) registry.Ref {
	return set.Registry.At(set.Registry.Find(key)).Slots[registry.Disk]
}
