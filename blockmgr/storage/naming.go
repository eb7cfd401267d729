package storage

import (
	"errors"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// namespace is the directory index of a namespace, which is its own until forget.
// Where the directory is full, the namespace whose unclaimed extents are the oldest
// gives its entry up and loses these, by remove; but none whose processes may still
// touch them. ErrNamespaces: there is no such namespace, or one has lost its
// extents and their files cannot be removed, which most likely goes for others too.
func (a *arena) namespace(id kv.NamespaceID, slotBytes uint64, remove func(path string) error) (uint32, error) {
	for removed := true; ; {
		index, err := a.tryNamespace(id, slotBytes)
		if !errors.Is(err, ErrNamespaces) {
			return index, err
		}
		if !removed {
			return 0, err
		}
		if gone := a.takeLeaving(); len(gone) > 0 { // they hold entries too
			removed = a.discardAll(gone, remove)
			continue
		}
		gone := a.takeNamespace()
		if len(gone) == 0 {
			return 0, err
		}
		a.cfg.Log.Info("a namespace that nobody has asked for makes room in the directory",
			zap.Stringer("tier", a.kind), zap.Int("extents", len(gone)), zap.Stringer("for", id))
		removed = a.discardAll(gone, remove)
	}
}

// discardAll discards extents and reports whether all of their files are gone.
func (a *arena) discardAll(gone map[uint32]holding, remove func(path string) error) bool {
	removed := true
	for section, h := range gone {
		removed = a.discard(section, h, remove) && removed
	}
	return removed
}

func (a *arena) tryNamespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	index, err := a.table.namespace(id, slotBytes, func(i uint32) bool {
		if _, ok := a.named[i]; ok {
			return true
		}
		for _, h := range a.extents {
			if h.namespace == i {
				return true
			}
		}
		return false
	})
	if err == nil {
		a.named[index] = struct{}{}
	}
	return index, err
}

// takeNamespace takes all extents of the namespace that is the first to lose its
// entry; nobody else gets them. There are none when every entry is needed.
func (a *arena) takeNamespace() map[uint32]holding {
	a.mu.Lock()
	defer a.mu.Unlock()
	newest := map[uint32]uint32{} // the youngest extent of each namespace
	kept := map[uint32]bool{}
	for _, h := range a.extents {
		if _, named := a.named[h.namespace]; named || !h.unclaimed {
			kept[h.namespace] = true
			continue
		}
		newest[h.namespace] = max(newest[h.namespace], h.extent)
	}
	var oldest uint32
	found := false
	for ns, extent := range newest {
		if !kept[ns] && (!found || extent < newest[oldest]) && !a.hasSessions(ns) {
			oldest, found = ns, true
		}
	}
	gone := map[uint32]holding{}
	for section, h := range a.extents {
		if found && h.namespace == oldest {
			h.unclaimed = false
			a.extents[section] = h
			gone[section] = h
		}
	}
	return gone
}

// forget gives a namespace's entry in the directory back. Nobody may use its index
// any more; while it has extents, the entry stays its own all the same.
func (a *arena) forget(index uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.named, index)
}
