package tier

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// recoverGroup is the number of records that prefetch looks up together, so that their cache
// misses overlap.
const recoverGroup = 64

// Recover adds an extent of an earlier agent. It calls slot for each of its slots, with the slot's
// record r, to decide what becomes of the slot: slot calls Adopt, Quarantine, ReturnFree or
// Reclaim. Until then the slot counts as free. damaged says that the record could not be read: r
// is not valid.
func (set *Set) Recover(t *Tier, e *Extent, slot func(ref registry.Ref, s *Slot, r *storage.Record, damaged bool)) {
	t.install(e)
	// In groups, so that prefetch overlaps the registry's cache misses.
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
				s.Tick = uint64(r.Recency) << recencyShift // about when the slot was last used
				set.clock = max(set.clock, s.Tick)
			} else {
				set.Counters.DamagedRecords++
			}
			t.stateCounts[storage.StateFree]++ // until the callback says otherwise
			slot(registry.MakeRef(e.Number, uint32(first+i)), s, r, damaged[i])
		}
	}
	slices.Reverse(e.free) // the first slot is taken first
	t.freeFrom = min(t.freeFrom, int(e.Number))
}

// prefetch looks up the blocks of some records and their parents, and ignores the result. The
// lookups that follow find the registry's memory in the CPU's cache.
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
		// Neighbouring slots often have neighbouring blocks: the parent was looked up just now.
		parent, ok := set.ancestry.Parent(r.Key, r.Parent, r.Position)
		if ok && (i == 0 || records[i-1].Key != parent) {
			keys[n] = parent
			n++
		}
	}
	set.Registry.FindAll(keys[:n], ids[:n])
}

// Adopt registers the sealed block of a recovered slot and reports whether it did. It refuses and
// counts a record of another namespace or size, and a block that is registered already. The caller
// calls OrderRecovered after all blocks are registered.
func (set *Set) Adopt(t *Tier, ref registry.Ref, s *Slot, r *storage.Record) (adopted bool) {
	if r.Namespace != t.Namespace || uint64(r.Length) != set.blockBytes {
		set.Counters.RecoveryForeign++
		return false
	}
	parent, hasParent := set.ancestry.Parent(r.Key, r.Parent, r.Position)
	id, ok := set.Registry.TryOccupy(r.Key, hasParent, parent, t.Level, ref)
	if !ok {
		set.Counters.RecoveryTwice++
		return false
	}
	// The last block of a circle finds its parent and a child.
	if e := set.Registry.At(id); e.Refs > 0 && e.Parent != registry.None && set.Registry.At(e.Parent).Occupied() {
		set.doubtful = append(set.doubtful, id)
	}
	s.Entry, s.Priority, s.resetEpoch = id, r.Priority, t.resetEpoch
	set.enterTenant(t, ref, s, r.Owner)
	set.markRecovered(s)
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

// Recoverable reports whether a host slot still has the sealed block of its record r. word is the
// slot's generation word. Free writes the word before the record: a word that differs from the
// record's generation means that the block is gone. Recoverable counts lost blocks: those freed,
// and those filled whose checksum was not computed.
func (set *Set) Recoverable(r *storage.Record, word uint64) bool {
	switch {
	case r.State == storage.StateFilled:
		set.Counters.RecoveryUnsealed++
	case r.State == storage.StateSealed && word != r.Generation:
		set.Counters.RecoveryFreed++
	}
	return r.State == storage.StateSealed && word == r.Generation
}

// Readable reads a whole quarantined host slot and reports whether its memory can be read
// now. An earlier agent quarantined the slot, most likely because its memory was damaged.
func (set *Set) Readable(e *Extent, i uint32) bool {
	if _, err := e.Host.ContentSum(i, kv.StoredKey{}, e.Geometry().SlotBytes); err != nil {
		set.MemoryError(e, err)
		return false
	}
	return true
}

// ReturnFree makes a recovered slot grantable. Its record says that it was free.
func (set *Set) ReturnFree(t *Tier, ref registry.Ref) { t.pushFree(ref) }

// Reclaim makes a recovered slot without a usable block grantable, at its next generation.
func (set *Set) Reclaim(t *Tier, ref registry.Ref, s *Slot) {
	s.Generation++
	s.Session = 0
	if !set.writeGeneration(t, ref, s) {
		return
	}
	if set.erases(s) {
		set.beginErase(t, ref, s)
		return
	}
	s.forgetTenant()
	t.PutRecord(ref, storage.Record{})
	t.pushFree(ref)
}

// OrderRecovered adds the recovered blocks without children to the eviction order. The caller
// first adopts every block, so that children are known. OrderRecovered drops and counts blocks that
// damaged records make their own ancestors.
func (set *Set) OrderRecovered() {
	for _, t := range set.Tiers() {
		var refs []registry.Ref
		for _, e := range t.Extents {
			if e != nil {
				refs = e.appendSealed(refs)
			}
		}
		set.orderRecovered(t, refs)
	}
	set.breakCircles()
}

// OrderJoined adds the recovered blocks of one extent to the eviction order, after the extent has
// joined a pool in use. It returns the slots with blocks by their blocks' positions, ascending.
func (set *Set) OrderJoined(t *Tier, e *Extent) (refs []registry.Ref) {
	refs = e.appendSealed(nil)
	set.orderRecovered(t, refs)
	for _, ref := range refs { // a parent that was in the order before has a child now
		set.updateEvictableEntry(t, set.Registry.At(t.Slot(ref).Entry).Parent)
	}
	set.breakCircles()
	refs = slices.DeleteFunc(refs, func(ref registry.Ref) bool { return t.Slot(ref).Entry == registry.None })
	slices.SortStableFunc(refs, func(a, b registry.Ref) int {
		return cmp.Compare(e.Records.Position(a.Slot()), e.Records.Position(b.Slot()))
	})
	return refs
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
		// Damaged records may name each other as parents: the walk ends after as many steps as there are slots.
		for ref != registry.NoRef && !t.Slot(ref).entered && len(line) < len(refs) {
			line = append(line, ref)
			ref = set.parentSlot(t, t.Slot(ref))
		}
		for _, ref := range slices.Backward(line) {
			if !t.Slot(ref).entered { // a walk in a circle has blocks twice
				set.enter(t, ref, t.Slot(ref))
			}
		}
	}
	for _, ref := range refs {
		set.UpdateEvictable(t, ref, t.Slot(ref))
	}
}

// breakCircles drops one block of each circle of parents that recovered blocks have closed. A block
// in a circle would never leave its tier: it always has a child. Each entry is visited once.
func (set *Set) breakCircles() {
	var seen visited
	var path []registry.ID
	for _, id := range set.doubtful {
		path = path[:0]
		for id != registry.None && seen.first(id) {
			path = append(path, id)
			id = set.Registry.At(id).Parent
		}
		if id != registry.None && slices.Contains(path, id) {
			set.dropCircular(id)
		}
	}
	set.doubtful = nil
}

// visited is a set of entries, a bit for each.
type visited []uint64

// first adds an entry and reports whether the set did not have it.
func (v *visited) first(id registry.ID) bool {
	word, bit := int(id/64), uint64(1)<<(id%64)
	if missing := word + 1 - len(*v); missing > 0 {
		*v = append(*v, make([]uint64, missing)...)
	}
	if (*v)[word]&bit != 0 {
		return false
	}
	(*v)[word] |= bit
	return true
}

// dropCircular drops the copies of a block in all tiers.
func (set *Set) dropCircular(id registry.ID) {
	slots := set.Registry.At(id).Slots // the entry may be freed with the last copy
	set.Counters.RecoveryCircular++
	for lv, ref := range slots {
		switch {
		case ref == registry.NoRef:
		case registry.Level(lv) == registry.Host:
			set.DropDamaged(ref, nil)
		default:
			set.Drop(set.Disk, ref, storage.StateFree)
		}
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
