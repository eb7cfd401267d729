package tier

import (
	"container/heap"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

const (
	// maxExpired bounds the blocks that one Expire drops.
	maxExpired = 512
	// expireAgain is the time after which a block that was in use at its deadline is looked at again.
	expireAgain = int64(time.Second)
)

// setDeadline says when the block of an entry expires.
func (set *Set) setDeadline(id registry.ID, at int64) {
	y := &set.tenancy
	if y.deadlines == nil {
		y.deadlines = map[registry.ID]int64{}
	}
	y.deadlines[id] = at
	if len(y.due) > 2*len(y.deadlines)+64 {
		y.due = y.due[:0]
		for id, at := range y.deadlines {
			y.due = append(y.due, queued{uint64(at), uint32(id)})
		}
		heap.Init(&y.due)
		return
	}
	heap.Push(&y.due, queued{uint64(at), uint32(id)})
}

// NextExpiry returns how long it is until Expire has something to do; ok is false for never.
func (set *Set) NextExpiry() (wait time.Duration, ok bool) {
	y := &set.tenancy
	for len(y.due) > 0 {
		if at, known := y.deadlines[registry.ID(y.due[0].ref)]; known && uint64(at) == y.due[0].at {
			return max(0, time.Duration(at)-time.Since(y.start)), true
		}
		heap.Pop(&y.due) // the block has left, or has another deadline
	}
	return 0, false
}

// Expire drops a few hundred blocks whose time is up from all tiers. It ends their retention pins. A
// block in use, or whose slot is being filled, is dropped later. disk says that the disk lost one.
func (set *Set) Expire() (disk bool) {
	for range maxExpired {
		wait, ok := set.NextExpiry()
		if !ok || wait > 0 {
			break
		}
		id := registry.ID(set.tenancy.due[0].ref)
		heap.Pop(&set.tenancy.due)
		if !set.dropExpired(id, &disk) {
			set.setDeadline(id, int64(time.Since(set.tenancy.start))+expireAgain)
		}
	}
	return disk
}

// dropExpired drops the copies of a block, and reports whether none is left. disk is set if one was on
// disk.
func (set *Set) dropExpired(id registry.ID, disk *bool) (all bool) {
	all = true
	for _, t := range set.Tiers() {
		ref := set.Registry.At(id).Slots[t.Level]
		if ref == registry.NoRef {
			continue
		}
		s := t.Slot(ref)
		set.unkeep(t, ref, s)
		set.UpdateEvictable(t, ref, s)
		all = all && !s.InUse() && s.State == storage.StateSealed
	}
	if !all { // both copies go at once, so that none is made from the other
		return false
	}
	for _, t := range set.Tiers() {
		e := set.Registry.At(id)
		ref := e.Slots[t.Level]
		if ref == registry.NoRef {
			continue
		}
		last := e.Slots[registry.Host] == registry.NoRef || e.Slots[registry.Disk] == registry.NoRef
		account := set.Tenants.At(t.Slot(ref).tenant)
		*disk = *disk || t.Level == registry.Disk
		set.Drop(t, ref, storage.StateFree)
		if last { // the entry may be gone
			account.CountExpired()
			set.Counters.BlocksExpired++
			break
		}
	}
	return true
}

// erases reports whether the bytes of a slot must be overwritten before the slot is free.
func (set *Set) erases(s *Slot) bool { return s.timed || set.Tenants.At(s.tenant).Erases() }

// beginErase takes a slot without a block out of use until its bytes are overwritten: by the caller of
// TakeErasing, or with the extent that leaves the tier. Its record says so to the next agent.
func (set *Set) beginErase(t *Tier, ref registry.Ref, s *Slot) {
	t.SetState(s, storage.StateQuarantined)
	t.PutRecord(ref, storage.Record{Owner: set.Tenants.At(s.tenant).TimedOwner()})
	t.updateEvictable(ref, s, false)
	if set.tenancy.leaving {
		return
	}
	s.Holds++
	t.erasing++
	set.tenancy.erasing = append(set.tenancy.erasing, slotName{t.Level, ref})
	if set.tenancy.onErase != nil {
		set.tenancy.onErase()
	}
}

// Erasable is a slot to overwrite with zeros.
type Erasable struct {
	Extent *Extent
	Slot   uint32

	name slotName
}

// TakeErasing returns at most n of the slots that must be overwritten. The caller overwrites them without
// the lock, and then calls EndErase with each.
func (set *Set) TakeErasing(n int) (slots []Erasable) {
	y := &set.tenancy
	n = min(n, len(y.erasing))
	for _, name := range y.erasing[:n] {
		e, i := set.Tier(name.level).At(name.ref)
		slots = append(slots, Erasable{e, i, name})
	}
	y.erasing = append(y.erasing[:0], y.erasing[n:]...)
	return slots
}

// EndErase makes an overwritten slot free. With an error the slot stays out of use, and TakeErasing
// returns it again.
func (set *Set) EndErase(slot Erasable, err error) {
	t := set.Tier(slot.name.level)
	s := t.Slot(slot.name.ref)
	if err != nil {
		set.Counters.EraseErrors++
		set.tenancy.erasing = append(set.tenancy.erasing, slot.name)
		return
	}
	s.Holds--
	t.erasing--
	s.Session = 0
	s.forgetTenant()
	set.Counters.SlotsErased++
	t.SetState(s, storage.StateFree)
	t.PutRecord(slot.name.ref, storage.Record{})
	t.pushFree(slot.name.ref)
}

// EraseAll returns the slots of an extent that leaves its tier whose bytes must be overwritten.
func (set *Set) EraseAll(e *Extent) (slots []uint32) {
	for i := range e.Slots {
		if set.erases(&e.Slots[i]) {
			slots = append(slots, uint32(i))
		}
	}
	return slots
}
