package storage

import (
	"errors"
	"os"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// HostArena is the node's shared host memory. It starts empty: what an earlier
// agent left in the directory is unlinked, and engines that still map it keep
// the old memory for as long as they like.
type HostArena struct{ arena *arena }

// HostPart is one extent of a host arena with its records.
type HostPart struct {
	ID     uint32
	Extent *HostExtent
	Slots  *Section
}

// OpenHostArena locks the directory and clears it.
func OpenHostArena(cfg ArenaConfig) (*HostArena, error) {
	a, _, err := openArena(cfg, KindHost)
	if err != nil {
		return nil, err
	}
	stale, err := a.extentFiles()
	if err == nil {
		err = a.removeExtents(stale)
	}
	if err != nil {
		return nil, errors.Join(err, a.table.close())
	}
	if len(stale) > 0 {
		cfg.Log.Info("removed the host extents of an earlier agent", zap.Int("extents", len(stale)), zap.String("dir", cfg.Dir))
	}
	if !a.fs.InMemory {
		cfg.Log.Warn("host directory is on neither tmpfs nor hugetlbfs: blocks go through a real file system", zap.String("dir", cfg.Dir))
	}
	return &HostArena{a}, nil
}

// Namespace enters a namespace whose slots are slotBytes long and returns the
// index that its records carry.
func (h *HostArena) Namespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	return h.arena.namespace(id, slotBytes)
}

// Grow makes one extent for namespace ns with room for at least minSlots,
// reserved and faulted in. ErrFull means that the budget is used.
func (h *HostArena) Grow(ns uint32, slotBytes, minSlots uint64) (HostPart, error) {
	id, bytes, err := h.arena.reserve(ns, HostBytesFor(minSlots, slotBytes))
	if err != nil {
		return HostPart{}, err
	}
	part, err := h.build(id, ns, bytes, slotBytes)
	if err != nil {
		h.arena.release(id)
		return HostPart{}, err
	}
	return part, nil
}

func (h *HostArena) build(id, ns uint32, bytes, slotBytes uint64) (HostPart, error) {
	geo, err := HostGeometry(bytes, slotBytes, h.arena.fs.Unit)
	if err != nil {
		return HostPart{}, err
	}
	ext, err := CreateHostExtent(h.arena.extentPath(id), geo)
	if err != nil {
		return HostPart{}, err
	}
	part := HostPart{ID: id, Extent: ext}
	part.Slots, err = h.arena.table.section(id, ns, geo.Slots, true)
	for i := uint32(0); i < geo.Slots && err == nil; i++ {
		err = ext.SetGeneration(i, 1)
	}
	if err != nil {
		return HostPart{}, errors.Join(err, part.close())
	}
	return part, nil
}

func (p HostPart) close() error {
	var err error
	if p.Slots != nil {
		err = p.Slots.close()
	}
	return errors.Join(err, p.Extent.Close())
}

// Drop unmaps and unlinks one extent, whose bytes return to the budget. A client
// may map the file for as long as it likes, so its memory is taken out from under
// the mapping: what is read there from now on is zero, the generation words
// included, which tells a late loader that its load has failed.
func (h *HostArena) Drop(p HostPart) {
	if err := errors.Join(p.Extent.punch(), p.close()); err != nil {
		h.arena.cfg.Log.Warn("dropping a host extent", zap.String("path", p.Extent.path), zap.Error(err))
	}
	h.arena.release(p.ID)
}

// Close unmaps and unlinks everything the arena made, its directory included
// when it made that too and nothing else is in it.
func (h *HostArena) Close(parts []HostPart) error {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.close())
	}
	// Unlink before unlocking: the next agent must not find this table.
	errs = append(errs, os.Remove(h.arena.table.path), h.arena.table.close())
	if h.arena.madeDir {
		// Somebody else's files in it are a reason to keep it, not an error.
		_ = os.Remove(h.arena.cfg.Dir)
	}
	return errors.Join(errs...)
}
