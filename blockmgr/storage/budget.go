package storage

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// need is what somebody wants of a new extent. maxSlots 0 means no bound.
type need struct {
	ns                 uint32
	slotBytes          uint64
	minSlots, maxSlots uint64
}

// reserve takes a new extent's slots out of the budget and gives it an id and a
// place in the table. When the budget is used, an unclaimed extent yields, whose
// file goes by remove; ErrFull means that there is none. Files that could not be
// removed earlier are tried again first.
func (a *arena) reserve(n need, remove func(path string) error) (section uint32, head sectionHead, err error) {
	item, ok := a.table.item(n.ns)
	if !ok || item.slotBytes != n.slotBytes {
		return 0, sectionHead{}, fmt.Errorf("%s extent: slots of %d bytes: namespace %d has %d", a.kind, n.slotBytes, n.ns, item.slotBytes)
	}
	for section, h := range a.takeLeaving() {
		a.discard(section, h, remove)
	}
	for {
		section, head, err = a.tryReserve(n)
		if !errors.Is(err, ErrFull) {
			break
		}
		section, h, ok := a.takeYielding()
		if !ok {
			return 0, sectionHead{}, err
		}
		a.discard(section, h, remove)
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
	a.extents[section] = holding{sectionHead: head}
	return section, head, nil
}

func (a *arena) tryReserve(n need) (section uint32, head sectionHead, err error) {
	least := max(n.minSlots, 1)
	if n.maxSlots > 0 && n.maxSlots < least {
		return 0, head, fmt.Errorf("%s extent of at most %d slots: want at least %d", a.kind, n.maxSlots, least)
	}
	fit := a.mostSlots(n.slotBytes)
	if least > fit {
		return 0, head, fmt.Errorf("%s extent of %d slots of %d bytes: want at most %d", a.kind, least, n.slotBytes, fit)
	}
	if least > a.cfg.Bytes/n.slotBytes {
		return 0, head, fmt.Errorf("%s size %d: too small, one extent needs at least %d bytes", a.kind, a.cfg.Bytes, least*n.slotBytes)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	left := a.room()
	slots := min(max(a.cfg.ExtentBytes/n.slotBytes, least), fit, left/n.slotBytes)
	if n.maxSlots > 0 {
		slots = min(slots, n.maxSlots)
	}
	if slots < least {
		return 0, head, fmt.Errorf("%s size %d: %w: %d bytes are left, one extent needs at least %d",
			a.kind, a.cfg.Bytes, ErrFull, left, least*n.slotBytes)
	}
	for a.extents[section].slots > 0 {
		section++
	}
	head = sectionHead{namespace: n.ns, slots: uint32(slots), slotBytes: n.slotBytes}
	a.extents[section] = holding{sectionHead: head}
	a.used.Add(head.bytes())
	return section, head, nil
}

// room is how many bytes of the budget no extent takes. It waits for nothing.
func (a *arena) room() uint64 { return a.cfg.Bytes - min(a.used.Load(), a.cfg.Bytes) }

// mostSlots is how many slots the largest extent has: what a file and a section
// can hold.
func (a *arena) mostSlots(slotBytes uint64) uint64 {
	slots := uint64(MaxExtentBytes / slotBytes)
	if a.kind == KindHost {
		slots = extent.HostSlots(MaxExtentBytes, slotBytes)
	}
	return min(slots, uint64(a.table.stride))
}

// release gives an extent's bytes and its place in the table back.
func (a *arena) release(section uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.extents[section]
	a.used.Add(-h.bytes())
	delete(a.extents, section)
}

// discard makes an extent that nobody has open go, by remove. Its bytes and its
// place are another's only when its file is gone: while it cannot be removed, the
// extent is leaving, and is tried again before the next one is made. It reports
// whether the file is gone.
func (a *arena) discard(section uint32, h holding, remove func(path string) error) bool {
	path := a.path(section, h.extent)
	if err := remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.cfg.Log.Warn("extent cannot be removed for now; its room stays taken",
			zap.Stringer("tier", a.kind), zap.String("path", path), zap.Error(err))
		h.leaving = true
		a.mu.Lock()
		defer a.mu.Unlock()
		a.extents[section] = h
		a.left.Add(1)
		return false
	}
	a.release(section)
	return true
}

// takeLeaving takes the extents that are leaving, by place in the table: the
// caller, and nobody else meanwhile, tries to make them go.
func (a *arena) takeLeaving() map[uint32]holding {
	if a.left.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := map[uint32]holding{}
	for section, h := range a.extents {
		if h.leaving {
			h.leaving = false
			a.extents[section] = h
			taken[section] = h
			a.left.Add(-1)
		}
	}
	return taken
}

// takeUnclaimed are the extents that namespace ns had before the restart, in
// the order they were made; nobody else gets them.
func (a *arena) takeUnclaimed(ns uint32) []uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	sections := a.unclaimedLocked(func(h *holding) bool { return h.namespace == ns })
	for _, section := range sections {
		h := a.extents[section]
		h.unclaimed = false
		a.extents[section] = h
	}
	return sections
}

// unclaim gives an extent that was claimed back to whoever asks for it next.
func (a *arena) unclaim(section uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.extents[section]
	h.unclaimed = true
	a.extents[section] = h
}

// unclaimedSlots is how many slots namespace ns has in extents that it had before
// the restart and has not claimed yet.
func (a *arena) unclaimedSlots(ns uint32) (slots int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, section := range a.unclaimedLocked(func(h *holding) bool { return h.namespace == ns }) {
		slots += int(a.extents[section].slots)
	}
	return slots
}

// takeYielding takes the oldest unclaimed extent that no process can touch.
func (a *arena) takeYielding() (section uint32, h holding, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sections := a.unclaimedLocked(func(h *holding) bool { return !a.hasSessions(h.namespace) })
	if len(sections) == 0 {
		return 0, holding{}, false
	}
	h = a.extents[sections[0]]
	h.unclaimed = false
	a.extents[sections[0]] = h
	return sections[0], h, true
}

// unclaimedLocked are the unclaimed extents that suit, oldest first.
func (a *arena) unclaimedLocked(suits func(*holding) bool) []uint32 {
	var sections []uint32
	for section, h := range a.extents {
		if h.unclaimed && suits(&h) {
			sections = append(sections, section)
		}
	}
	slices.SortFunc(sections, func(x, y uint32) int { return cmp.Compare(a.extents[x].extent, a.extents[y].extent) })
	return sections
}
