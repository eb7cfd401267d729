package tier

import (
	"encoding/binary"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
)

const (
	// blockTicks is the number of ticks that the clock advances for a block that comes into
	// host memory. A call advances it by one.
	blockTicks = 16
	// recencyShift makes a record's recency coarse. The recency changes with every 1024th
	// tick, about every 64th stored block. Its 32 bits last for 270 billion blocks.
	recencyShift = 10
)

// Tick begins an operation. It advances the clock by one tick, and by blockTicks for each
// block that came into host memory since the last Tick.
func (set *Set) Tick() {
	set.clock += 1 + blockTicks*set.arrived
	set.arrived = 0
	set.now = set.Tenants.Now()
}

// The eviction orders learn from enter, leave and Touch, and nowhere else, which blocks their tiers
// have and which blocks are asked for.

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
// copy takes over the age of the host copy later; see reprieve and AgeDiskCopy. Touch returns false if the
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
			set.age(t, ref, s, set.clock, set.now)
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

// Prefer raises the priority of a resident block.
func (set *Set) Prefer(t *Tier, ref registry.Ref, priority uint32) {
	s := t.Slot(ref)
	if priority > s.Priority {
		s.Priority = priority
		t.PutRecord(ref, t.Record(ref))
		set.UpdateEvictable(t, ref, s)
	}
}

// age sets the tick and the time at which a slot was last used, and moves the slot in the eviction order.
// The record keeps a coarse copy of the tick for the next agent.
func (set *Set) age(t *Tier, ref registry.Ref, s *Slot, tick uint64, used tenant.Age) {
	if s.Tick>>recencyShift != tick>>recencyShift {
		e, i := t.At(ref)
		e.Records.SetRecency(i, uint32(tick>>recencyShift))
	}
	s.Tick, s.used = tick, used
	if s.inEvictionOrder {
		t.evictionOrder.Place(ref, s.Priority, tick)
		if s.tenant != 0 {
			t.placeOwned(ref, s)
		}
	}
}

// AgeDiskCopy gives the disk copy of a host block the tick of the host block, if that is later:
// lookups touch the host copy alone. It is called before the host copy leaves its tier, and before the disk
// copy is evicted. AgeDiskCopy reports whether the tick was later.
func (set *Set) AgeDiskCopy(host *Slot) (later bool) {
	ref := set.Registry.At(host.Entry).Slots[registry.Disk]
	if ref == registry.NoRef {
		return false
	}
	s := set.Disk.Slot(ref)
	if later = host.Tick > s.Tick; later {
		set.age(set.Disk, ref, s, host.Tick, host.used)
	}
	return later
}

const (
	// maxErasedVictims bounds the blocks of one Alloc whose slots must be overwritten first. A later Alloc
	// finds those slots free.
	maxErasedVictims = 4
	// maxErasing bounds the slots of a tier that wait to be overwritten, beyond which Alloc evicts no block
	// for which another one would wait.
	maxErasing = 256
)

// Alloc takes a free slot, and evicts a block when no slot is free. It returns NoRef when
// every slot is in use, or when the slots of the blocks to evict must be overwritten first.
func (set *Set) Alloc(t *Tier) registry.Ref {
	if ref := t.popFree(); ref != registry.NoRef {
		return ref
	}
	// Drop quarantines a victim whose generation word cannot be written: evict another.
	for erased := 0; erased < maxErasedVictims; {
		victim, ok := set.afterReprieves(t, t.evictionOrder.Victim)
		if !ok {
			return registry.NoRef
		}
		if set.erases(t.Slot(victim)) {
			if t.erasing >= maxErasing {
				return registry.NoRef
			}
			erased++
		}
		set.countEviction(t)
		set.Drop(t, victim, storage.StateFree)
		if ref := t.popFree(); ref != registry.NoRef {
			return ref
		}
	}
	return registry.NoRef
}

// AllocFor takes a slot for block b, or returns NoRef. When no slot is free it evicts a block, but
// no ancestor of b, because a lookup finds b only behind its ancestors. When b's parent is in no
// tier it evicts nothing.
func (set *Set) AllocFor(t *Tier, b *Block) registry.Ref {
	parent, ok := set.ParentKey(b)
	if !ok || t.Free() > 0 {
		return set.Alloc(t)
	}
	// Hold the nearest ancestor with a slot in the tier while Alloc evicts.
	for id, steps := set.Registry.Find(&parent), 0; ; steps++ {
		// A block that follows a recovered one with a damaged record may be its own ancestor.
		if id == registry.None || !set.Registry.At(id).Occupied() || steps > set.Registry.Blocks() {
			return registry.NoRef // an ancestor is gone: no lookup would find b
		}
		e := set.Registry.At(id)
		if ref := e.Slots[t.Level]; ref != registry.NoRef {
			// Ancestors before this one stay too: children are evicted first.
			set.Hold(t, ref)
			defer set.Release(t, ref)
			return set.Alloc(t)
		}
		if e.Parent == registry.None { // no ancestor is in this tier
			return set.Alloc(t)
		}
		id = e.Parent
	}
}

// Obtainable returns how many slots Alloc could return in a row. A result below want is
// exact, any other is a lower bound. Obtainable may look at every slot of the tier.
func (set *Set) Obtainable(t *Tier, want int) int {
	if n := t.Free() + t.evictionOrder.Len(); n >= want {
		return n
	}
	// Alloc can evict every block except those in use and their ancestors, which stay.
	blocks, stays := 0, map[registry.ID]struct{}{}
	t.Each(func(_ registry.Ref, s *Slot) {
		if s.Entry == registry.None {
			return
		}
		blocks++
		if s.State == storage.StateSealed && !s.InUse() {
			return
		}
		for id := s.Entry; id != registry.None; id = set.Registry.At(id).Parent {
			if _, known := stays[id]; known || set.Registry.At(id).Slots[t.Level] == registry.NoRef {
				return
			}
			stays[id] = struct{}{}
		}
	})
	return t.Free() + blocks - len(stays)
}

// maxReprieves bounds how many blocks one eviction puts back into the order.
const maxReprieves = 64

// afterReprieves returns the slot that first returns once that slot needs no reprieve. first returns the slot to
// evict first; ok is false when no slot may be evicted.
func (set *Set) afterReprieves(t *Tier, first func() (registry.Ref, bool)) (ref registry.Ref, ok bool) {
	for range maxReprieves {
		if ref, ok = first(); !ok || !set.reprieve(t, ref) {
			return ref, ok
		}
	}
	return first()
}

// reprieve gives a disk block whose host copy was used later the age of that copy, puts the block back into
// the eviction orders, and reports whether it did.
func (set *Set) reprieve(t *Tier, ref registry.Ref) bool {
	if t.Level != registry.Disk {
		return false
	}
	host := set.Registry.At(t.Slot(ref).Entry).Slots[registry.Host]
	return host != registry.NoRef && set.AgeDiskCopy(set.Host.Slot(host))
}

func (set *Set) countEviction(t *Tier) {
	if t.Level == registry.Host {
		set.Counters.HostEvictions++
	} else {
		set.Counters.DiskEvictions++
	}
}
