package storage

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// need describes a new extent that a caller of Grow wants. maxSlots 0 means no bound.
type need struct {
	ns                 uint32
	slotBytes          uint64
	minSlots, maxSlots uint64
}

// reserve takes the slots of a new extent out of the budget and gives the extent an id and a
// section of the slot table; release undoes that. It first tries again to remove the files of
// leaving extents. When the budget is used up, it discards unclaimed extents; ErrFull means that
// none is left.
func (a *arena) reserve(n need) (section uint32, head sectionHead, err error) {
	item, ok := a.table.item(n.ns)
	if !ok || item.slotBytes != n.slotBytes {
		return 0, sectionHead{}, fmt.Errorf("%s extent: slots of %d bytes: namespace %d has %d", a.kind, n.slotBytes, n.ns, item.slotBytes)
	}
	a.discardAll(a.takeLeaving())
	for {
		section, head, err = a.tryReserve(n)
		if !errors.Is(err, ErrFull) {
			break
		}
		section, e, ok := a.takeYielding()
		if !ok {
			return 0, sectionHead{}, err
		}
		a.discard(section, e)
	}
	if err != nil {
		return 0, sectionHead{}, err
	}
	if head.extent, err = a.table.takeExtentID(); err != nil {
		a.release(section)
		return 0, sectionHead{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.extents[section] = extentEntry{sectionHead: head}
	return section, head, nil
}

// tryReserve takes the slots of a new extent out of the budget and enters the extent under a free
// section of the slot table, without an id yet. The extent has as many slots as ExtentBytes and
// the budget allow. ErrFull: fewer than n.minSlots fit into the rest of the budget. Other errors
// say that n can never be met.
func (a *arena) tryReserve(n need) (section uint32, head sectionHead, err error) {
	least := max(n.minSlots, 1)
	if n.maxSlots > 0 && n.maxSlots < least {
		return 0, head, fmt.Errorf("%s extent of at most %d slots: want at least %d", a.kind, n.maxSlots, least)
	}
	most := a.MostSlots(n.slotBytes)
	if least > most {
		return 0, head, fmt.Errorf("%s extent of %d slots of %d bytes: want at most %d", a.kind, least, n.slotBytes, most)
	}
	if least > a.Bytes()/n.slotBytes {
		return 0, head, fmt.Errorf("%s size %d: too small, one extent needs at least %d bytes", a.kind, a.Bytes(), least*n.slotBytes)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	left := a.Room()
	slots := min(max(a.cfg.ExtentBytes/n.slotBytes, least), most, left/n.slotBytes)
	if n.maxSlots > 0 {
		slots = min(slots, n.maxSlots)
	}
	if slots < least {
		return 0, head, fmt.Errorf("%s size %d: %w: %d bytes are left, one extent needs at least %d",
			a.kind, a.Bytes(), ErrFull, left, least*n.slotBytes)
	}
	for a.extents[section].slots > 0 { // the first section that no extent has
		section++
	}
	head = sectionHead{namespace: n.ns, slots: uint32(slots), slotBytes: n.slotBytes}
	a.extents[section] = extentEntry{sectionHead: head}
	a.used.Add(head.bytes())
	return section, head, nil
}

// release returns an extent's bytes to the budget and frees its section.
func (a *arena) release(section uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.extents[section]
	a.used.Add(-e.bytes())
	delete(a.extents, section)
}

// discard removes the file of a closed extent, and then releases the extent. While the file
// cannot be removed, the extent is leaving: it keeps its bytes and its section, and reserve
// tries again. discard reports whether the file is gone.
func (a *arena) discard(section uint32, e extentEntry) bool {
	path := a.path(section, e.extent)
	if err := a.removeFile(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.cfg.Log.Warn("extent cannot be removed for now: its room stays in use",
			zap.Stringer("tier", a.kind), zap.String("path", path), zap.Error(err))
		e.leaving = true
		a.mu.Lock()
		defer a.mu.Unlock()
		a.extents[section] = e
		a.leavingExtents.Add(1)
		return false
	}
	a.release(section)
	return true
}

// discardAll discards extents and reports whether all of their files are gone.
func (a *arena) discardAll(gone map[uint32]extentEntry) bool {
	removed := true
	for section, e := range gone {
		removed = a.discard(section, e) && removed
	}
	return removed
}

// takeLeaving returns the leaving extents, by section, for the caller to discard. They are not
// leaving any more, so that no other goroutine discards them too.
func (a *arena) takeLeaving() map[uint32]extentEntry {
	if a.leavingExtents.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := map[uint32]extentEntry{}
	for section, e := range a.extents {
		if e.leaving {
			e.leaving = false
			a.extents[section] = e
			taken[section] = e
			a.leavingExtents.Add(-1)
		}
	}
	return taken
}

// takeUnclaimed claims the extents that a namespace had before the restart: no other caller gets
// them. It returns their sections, oldest extent first.
func (a *arena) takeUnclaimed(ns uint32) []uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	sections := a.unclaimedLocked(func(e *extentEntry) bool { return e.namespace == ns })
	for _, section := range sections {
		a.setUnclaimedLocked(section, false)
	}
	return sections
}

// unclaim lets a later caller claim an extent.
func (a *arena) unclaim(section uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.setUnclaimedLocked(section, true)
}

// takeYielding claims the oldest unclaimed extent that no process can touch, for the caller to
// discard. ok is false when there is none.
func (a *arena) takeYielding() (section uint32, e extentEntry, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sections := a.unclaimedLocked(func(e *extentEntry) bool { return !a.hasSessions(e.namespace) })
	if len(sections) == 0 {
		return 0, extentEntry{}, false
	}
	return sections[0], a.setUnclaimedLocked(sections[0], false), true
}

// DropUnclaimed removes extents of an earlier agent that no pool has claimed and no process can touch,
// the oldest first, until no more than the budget is used. It reports whether that is so.
func (a *arena) DropUnclaimed() (within bool) {
	for a.Used() > a.Bytes() {
		section, e, ok := a.takeYielding()
		if !ok {
			return false
		}
		if !a.discard(section, e) {
			return false // its file cannot be removed now
		}
	}
	return true
}

// setUnclaimedLocked changes extentEntry.unclaimed and returns the entry.
func (a *arena) setUnclaimedLocked(section uint32, unclaimed bool) extentEntry {
	e := a.extents[section]
	e.unclaimed = unclaimed
	a.extents[section] = e
	return e
}

// unclaimedLocked returns the sections of the unclaimed extents that suit, oldest
// extent first.
func (a *arena) unclaimedLocked(suits func(*extentEntry) bool) []uint32 {
	var sections []uint32
	for section, e := range a.extents {
		if e.unclaimed && suits(&e) {
			sections = append(sections, section)
		}
	}
	slices.SortFunc(sections, func(x, y uint32) int { return cmp.Compare(a.extents[x].extent, a.extents[y].extent) })
	return sections
}

// Unclaimed returns how many slots the extents have that Claim would return for namespace ns.
func (a *arena) Unclaimed(ns uint32) (slots int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, section := range a.unclaimedLocked(func(e *extentEntry) bool { return e.namespace == ns }) {
		slots += int(a.extents[section].slots)
	}
	return slots
}

// Namespace enters a namespace whose slots are slotBytes long, a multiple of
// PageSize. It returns the index that the namespace's records carry; the index is
// the namespace's own until Forget. When the directory is full, the namespace with
// the oldest unclaimed extents loses them and its entry, but never one whose
// processes may still touch the extents. ErrNamespaces means that there is no such
// namespace, or that the files of one could not be removed.
func (a *arena) Namespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	for removed := true; ; {
		index, err := a.tryNamespace(id, slotBytes)
		// If one file cannot be removed, the next one most likely cannot either.
		if !errors.Is(err, ErrNamespaces) || !removed {
			return index, err
		}
		gone := a.takeLeaving() // they hold entries too
		if len(gone) == 0 {
			if gone = a.takeNamespace(); len(gone) == 0 {
				return 0, err
			}
			a.cfg.Log.Info("an unclaimed namespace makes room in the directory",
				zap.Stringer("tier", a.kind), zap.Int("extents", len(gone)), zap.Stringer("for", id))
		}
		removed = a.discardAll(gone)
	}
}

// tryNamespace enters a namespace in the table's directory and returns its index. In a full directory
// it takes the entry of a namespace that has no extents and that no pool has named. ErrNamespaces:
// there is no such entry.
func (a *arena) tryNamespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	inUse := func(i uint32) bool {
		if _, ok := a.namespacesInUse[i]; ok {
			return true
		}
		for _, e := range a.extents {
			if e.namespace == i {
				return true
			}
		}
		return false
	}
	index, err := a.table.namespace(id, slotBytes, inUse)
	if err == nil {
		a.namespacesInUse[index] = struct{}{}
	}
	return index, err
}

// takeNamespace claims all extents of the namespace that loses its entry in the directory. It
// chooses among the unclaimed namespaces without sessions, by the age of the youngest extent.
// The result is empty when every entry is needed.
func (a *arena) takeNamespace() map[uint32]extentEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	youngest := map[uint32]uint32{} // the id of each namespace's youngest extent
	kept := map[uint32]bool{}       // the namespaces with an extent in use
	for _, e := range a.extents {
		if _, named := a.namespacesInUse[e.namespace]; named || !e.unclaimed {
			kept[e.namespace] = true
			continue
		}
		youngest[e.namespace] = max(youngest[e.namespace], e.extent)
	}
	var oldest uint32
	found := false
	for ns, id := range youngest {
		if !kept[ns] && (!found || id < youngest[oldest]) && !a.hasSessions(ns) {
			oldest, found = ns, true
		}
	}
	gone := map[uint32]extentEntry{}
	for section, e := range a.extents {
		if found && e.namespace == oldest {
			gone[section] = a.setUnclaimedLocked(section, false)
		}
	}
	return gone
}

// Forget releases the index of a namespace whose extents have been dropped: another namespace
// may get the index. While an extent of the namespace is leaving, the index stays the
// namespace's.
func (a *arena) Forget(ns uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.namespacesInUse, ns)
}
