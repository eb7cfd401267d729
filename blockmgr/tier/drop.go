package tier

import (
	"errors"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// Drop takes the slot's block out of the tier and reports its removal to the Sink. to is the state
// that the slot gets: free or quarantined. A block that was not announced yet is announced first,
// even before its parent: the Sink sees a store for every removal.
func (set *Set) Drop(t *Tier, ref registry.Ref, to storage.State) {
	s := t.Slot(ref)
	wasResident := s.Resident()
	if t.Level == registry.Host && wasResident { // the host copy alone knows the last use
		set.AgeDiskCopy(s)
	}
	set.leaveTenant(t, ref, s)
	parent := set.Registry.Vacate(s.Entry, t.Level)
	t.leave(ref, s)
	if wasResident && set.Sink != nil {
		set.announce(t, ref, s)
		r := t.Record(ref)
		set.Sink.BlockRemoved(set.ns, t.Kind, BlockOf(&r))
	}
	set.unkeep(t, ref, s)
	if s.Unverified {
		set.Unverified--
	}
	s.Entry, s.FromDisk, s.Unverified, s.WantsDisk, s.WriteAttempts = registry.None, false, false, false, 0
	if to == storage.StateFree {
		set.Free(t, ref)
	} else {
		set.Quarantine(t, ref)
	}
	set.updateEvictableEntry(t, parent) // without children the parent may be evicted
}

// DropDamaged drops a host block with wrong bytes or damaged memory; err says which. Damaged
// memory (extent.ErrMemory) stays out of use. Any other slot becomes free after its last pin
// and hold.
func (set *Set) DropDamaged(ref registry.Ref, err error) {
	s := set.Host.Slot(ref)
	set.unkeep(set.Host, ref, s)
	switch {
	case errors.Is(err, extent.ErrMemory):
		e, _ := set.Host.At(ref)
		set.MemoryError(e, err)
		set.Drop(set.Host, ref, storage.StateQuarantined)
	case s.InUse(): // AfterRelease frees the slot
		s.FreeOnRelease = true
		set.Drop(set.Host, ref, storage.StateQuarantined)
	default:
		set.Drop(set.Host, ref, storage.StateFree)
	}
}

// DropGrant takes a granted host slot away from its session. to is the state that the slot gets:
// free, or quarantined while the session's processes may still write. The slot may have lost its
// block to another session.
func (set *Set) DropGrant(ref registry.Ref, to storage.State) {
	switch {
	case set.Host.Slot(ref).Entry != registry.None:
		set.Drop(set.Host, ref, to)
	case to == storage.StateFree:
		set.Free(set.Host, ref)
	default:
		set.Quarantine(set.Host, ref)
	}
}

// Free makes a slot without a block grantable again, at its next generation; see beginErase for a slot
// whose bytes must be overwritten first. A host slot whose generation word cannot be written is
// quarantined instead.
func (set *Set) Free(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	s.Generation++
	s.Session, s.Holds, s.Priority, s.FreeOnRelease = 0, 0, 0, false
	// The word comes first: after a crash in between, recovery sees that the block is gone.
	if !set.writeGeneration(t, ref, s) {
		return
	}
	if set.erases(s) {
		set.beginErase(t, ref, s)
		return
	}
	s.forgetTenant()
	t.SetState(s, storage.StateFree)
	t.PutRecord(ref, storage.Record{})
	t.updateEvictable(ref, s, false)
	t.pushFree(ref)
}

// FreeLast frees a slot. Alloc takes the slot after the other free slots of its extent.
func (set *Set) FreeLast(t *Tier, ref registry.Ref) {
	set.Free(t, ref)
	t.useLast(ref)
}

// writeGeneration writes the slot's generation to the generation word, which engines compare when
// they copy. It quarantines a slot whose word cannot be written, and returns false. Disk slots
// have no word.
func (set *Set) writeGeneration(t *Tier, ref registry.Ref, s *Slot) bool {
	e, i := t.At(ref)
	if e.Host == nil {
		return true
	}
	if err := e.Host.SetGeneration(i, s.Generation); err != nil {
		set.MemoryError(e, err)
		set.Quarantine(t, ref)
		return false
	}
	return true
}

// Quarantine takes a slot without a block out of use. Its record keeps the block and the
// session. A record that an earlier agent left damaged stays as it is.
func (set *Set) Quarantine(t *Tier, ref registry.Ref) {
	s := t.Slot(ref)
	t.SetState(s, storage.StateQuarantined)
	e, i := t.At(ref)
	if r, err := e.Records.Get(i); err == nil {
		t.PutRecord(ref, r)
	}
	t.updateEvictable(ref, s, false)
}

// MemoryError counts and logs a fault on the mapped memory of a host extent.
func (set *Set) MemoryError(e *Extent, err error) {
	set.Counters.MemoryErrors++
	set.log.Error("host memory is damaged: its slot stays out of use", zap.String("extent", e.Path()), zap.Error(err))
}

// TakeOut evicts the blocks of an idle extent and removes the extent from its tier. gone.Erase then has
// the slots that the caller must overwrite, quarantined ones included.
func (set *Set) TakeOut(t *Tier, gone *Extent) {
	set.tenancy.leaving = true
	defer func() { set.tenancy.leaving = false }()
	for i := range gone.Slots {
		if gone.Slots[i].Entry != registry.None {
			set.countEviction(t)
			set.Drop(t, registry.MakeRef(gone.Number, uint32(i)), storage.StateFree)
		}
	}
	gone.Erase = set.EraseAll(gone)
	set.announcing.forget(t.Level, gone.Number)
	t.remove(gone)
}
