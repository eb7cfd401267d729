package tier

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// recoverGroup is how many records are recovered at a time, so that the waits for
// the registry's memory overlap.
const recoverGroup = 64

// Recover takes an extent of an earlier agent into use. It calls slot for each of its
// slots, which counts as free until slot has called Adopt, Quarantine, ReturnFree or
// Reclaim for it. damaged: r must not be used.
func (set *Set) Recover(t *Tier, e *Extent, slot func(ref registry.Ref, s *Slot, r *storage.Record, damaged bool)) {
	t.install(e)
	var records [recoverGroup]storage.Record
	var damaged [recoverGroup]bool
	for first := 0; first < len(e.Slots); first += recoverGroup {
		group := e.Slots[first:min(first+recoverGroup, len(e.Slots))]
		for i := range group {
			var err error
			records[i], err = e.Records.Get(uint32(first + i))
			damaged[i] = err != nil
		}
		set.prefetch(records[:len(group)])
		for i := range group {
			s, r := &group[i], &records[i]
			if !damaged[i] {
				s.Generation = r.Generation
				s.Tick = uint64(r.Recency) << recencyShift
				set.clock = max(set.clock, s.Tick)
			} else {
				set.Counters.DamagedRecords++
			}
			t.counts[storage.StateFree]++ // until slot says otherwise
			slot(registry.MakeRef(e.Number, uint32(first+i)), s, r, damaged[i])
		}
	}
	slices.Reverse(e.free) // the first slot is taken first
	t.freeFrom = min(t.freeFrom, int(e.Number))
}

// prefetch looks the blocks of some records and their parents up in the registry, and ignores
// the result. The later look-ups then find the registry's memory in the cache.
func (set *Set) prefetch(records []storage.Record) {
	var keys [2 * recoverGroup]kv.StoredKey
	var ids [2 * recoverGroup]registry.ID
	n := 0
	for i := range records {
		r := &records[i]
		if r.State != storage.StateSealed {
			continue
		}
		keys[n] = r.Key
		n++
		if r.Position > 0 && (i == 0 || records[i-1].Key.Block() != r.Parent) {
			keys[n] = r.Parent.InGroup(r.Key.Group())
			n++
		}
	}
	set.Registry.FindAll(keys[:n], ids[:n])
}

// Adopt registers the sealed block of a recovered slot. It refuses and counts records
// that cannot be of this pool, and all but the first of equal blocks. The caller
// settles the slot with SettleRecovered once all blocks are registered.
func (set *Set) Adopt(t *Tier, ref registry.Ref, s *Slot, r *storage.Record) bool {
	if r.Namespace != t.Namespace || uint64(r.Length) != set.blockBytes {
		set.Counters.RecoveryForeign++
		return false
	}
	id, ok := set.Registry.TryOccupy(r.Key, r.Position > 0, r.Parent.InGroup(r.Key.Group()), t.Level, ref)
	if !ok {
		set.Counters.RecoveryTwice++
		return false
	}
	s.Entry, s.Priority, s.epoch = id, r.Priority, t.epoch
	set.announceLater(s)
	t.SetState(s, storage.StateSealed)
	if t.Level == registry.Disk {
		set.Counters.Recovered++
		return true
	}
	set.Counters.RecoveredHost++
	s.Unverified = true
	set.Unverified++
	return true
}

// Recoverable reports whether a host record vouches for the bytes in its slot, and
// counts a block that is lost because it does not. When a slot is freed its generation
// word is written before its record: a word that is ahead means that the block is
// gone.
func (set *Set) Recoverable(r *storage.Record, word uint64) bool {
	switch {
	case r.State == storage.StateFilled:
		set.Counters.RecoveryUnsealed++
	case r.State == storage.StateSealed && word != r.Generation:
		set.Counters.RecoveryFreed++
	}
	return r.State == storage.StateSealed && word == r.Generation
}

// Readable reads a whole host slot that was taken out of use for no session: most
// likely its memory was damaged. It reports whether the memory can be read now.
func (set *Set) Readable(e *Extent, i uint32) bool {
	if _, err := e.Host.ContentSum(i, kv.StoredKey{}, e.Geometry().SlotBytes); err != nil {
		set.MemoryError(e, err)
		return false
	}
	return true
}

// ReturnFree makes a recovered slot grantable that was free before.
func (set *Set) ReturnFree(t *Tier, ref registry.Ref) { t.pushFree(ref) }

// Reclaim makes a recovered slot grantable that was in no good state, at its next
// generation.
func (set *Set) Reclaim(t *Tier, ref registry.Ref, s *Slot) {
	s.Generation++
	s.Session = 0
	if !set.writeGeneration(t, ref, s) {
		return
	}
	t.PutRecord(ref, storage.Record{})
	t.pushFree(ref)
}

// SettleRecovered enters what was found into the eviction order, once it is known
// which blocks have children.
func (set *Set) SettleRecovered() {
	for _, t := range set.Tiers() {
		t.Each(func(ref registry.Ref, s *Slot) {
			if s.State == storage.StateSealed {
				set.Settle(t, ref, s)
			}
		})
	}
}

// SettleJoined is SettleRecovered for one extent that joined a pool in use. It returns
// the slots with blocks in order of their blocks' positions.
func (set *Set) SettleJoined(t *Tier, e *Extent) (refs []registry.Ref) {
	for i := range e.Slots {
		if s := &e.Slots[i]; s.State == storage.StateSealed {
			ref := registry.MakeRef(e.Number, uint32(i))
			refs = append(refs, ref)
			set.Settle(t, ref, s)
			set.settleEntry(t, set.Registry.At(s.Entry).Parent)
		}
	}
	slices.SortStableFunc(refs, func(a, b registry.Ref) int {
		return cmp.Compare(e.Records.Position(a.Slot()), e.Records.Position(b.Slot()))
	})
	return refs
}
