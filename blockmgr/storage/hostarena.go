package storage

import (
	"errors"
	"os"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// HostArena is the node's shared host memory. It outlives the agent, but not
// the boot: an arena of the same version, and of the extent size if one is asked
// for, is opened with the blocks, pins and sessions it had. Where that cannot be, the files of the
// earlier agent are unlinked, and engines that still map them keep the old
// memory for as long as they like.
type HostArena struct {
	arena *arena
	// small says once why extents have small pages.
	small sync.Once
}

// HostPart is one extent of a host arena with its records.
type HostPart struct {
	// ID names the extent to clients. No other extent of the arena ever has it.
	ID     uint32
	Extent *extent.Host
	Slots  *Section
}

// OpenHostArena locks the directory and finds what an earlier agent left.
func OpenHostArena(cfg ArenaConfig) (*HostArena, error) {
	a, err := openArena(cfg, KindHost)
	if err != nil {
		return nil, err
	}
	return &HostArena{arena: a}, nil
}

// Warm reports whether the arena came back as an earlier agent left it.
func (h *HostArena) Warm() bool { return h.arena.table.warm }

// Extents is how many extents there are, those of an earlier agent included.
func (h *HostArena) Extents() int {
	h.arena.mu.Lock()
	defer h.arena.mu.Unlock()
	return len(h.arena.extents)
}

// Sessions is the arena's session table.
func (h *HostArena) Sessions() *SessionTable { return h.arena.table.sessions }

// Namespace enters a namespace whose slots are slotBytes long, a multiple of
// PageSize, and returns the index that its records carry, which is its own until
// Forget. When the directory is full, a namespace that nobody has claimed since the
// restart loses its extents; ErrNamespaces means that there is none without processes,
// or that the files of one cannot be removed.
func (h *HostArena) Namespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	return h.arena.namespace(id, slotBytes, extent.DiscardHost)
}

// Forget gives the index of a namespace back, whose extents have been dropped:
// another namespace may get it.
func (h *HostArena) Forget(ns uint32) { h.arena.forget(ns) }

// Unclaimed is how many slots Claim would find.
func (h *HostArena) Unclaimed(ns uint32) int { return h.arena.unclaimedSlots(ns) }

// Claim maps the extents that namespace ns had before the restart and hands
// them out, oldest first. One that cannot be mapped is dropped, with a log line.
func (h *HostArena) Claim(ns uint32) []HostPart {
	var parts []HostPart
	for _, section := range h.arena.takeUnclaimed(ns) {
		held := h.arena.holding(section)
		part, err := h.reopen(section, &held.sectionHead)
		if err != nil {
			h.arena.cfg.Log.Warn("host extent is dropped", zap.String("path", h.arena.path(section, held.extent)), zap.Error(err))
			h.arena.removed.Add(1)
			h.arena.discard(section, held, extent.DiscardHost)
			continue
		}
		parts = append(parts, part)
	}
	return parts
}

func (h *HostArena) reopen(section uint32, head *sectionHead) (HostPart, error) {
	ext, err := extent.OpenHost(h.arena.path(section, head.extent), h.arena.geometry(head))
	if err != nil {
		return HostPart{}, err
	}
	slots, err := h.arena.table.openSection(section, *head)
	if err != nil {
		return HostPart{}, errors.Join(err, ext.Close())
	}
	return HostPart{head.extent, ext, slots}, nil
}

// Grow makes one extent for namespace ns, with ExtentBytes of slots of slotBytes
// each or what is left of the budget, but at least minSlots and, unless it is
// zero, at most maxSlots. Its memory is reserved and faulted in. When the budget
// is used, unclaimed extents yield, unless a session of their namespace is in
// the session table; ErrFull means that dropping extents would help.
func (h *HostArena) Grow(ns uint32, slotBytes, minSlots, maxSlots uint64) (HostPart, error) {
	section, head, err := h.arena.reserve(need{ns, slotBytes, minSlots, maxSlots}, extent.DiscardHost)
	if err != nil {
		return HostPart{}, err
	}
	part, err := h.build(section, head)
	if err != nil {
		h.arena.release(section)
		return HostPart{}, err
	}
	return part, nil
}

// build makes the file under a temporary name, which it loses when everything
// about the extent is true.
func (h *HostArena) build(section uint32, head sectionHead) (part HostPart, err error) {
	ext, err := extent.CreateHost(h.arena.path(section, head.extent), h.arena.geometry(&head))
	if err != nil {
		return HostPart{}, err
	}
	for i := uint32(0); i < head.slots && err == nil; i++ {
		err = ext.SetGeneration(i, 1)
	}
	var slots *Section
	if err == nil {
		slots, err = h.arena.table.createSection(section, head)
	}
	if err == nil {
		err = ext.Publish()
	}
	if err != nil {
		err = errors.Join(err, ext.Close(), unlink(ext.Path()))
		if slots != nil {
			err = errors.Join(err, slots.close())
		}
		return HostPart{}, err
	}
	if ext.SmallPages() != nil && h.arena.fs.InMemory {
		h.small.Do(func() {
			h.arena.cfg.Log.Info("host extents have small pages", zap.NamedError("reason", ext.SmallPages()))
		})
	}
	return HostPart{head.extent, ext, slots}, nil
}

func (p HostPart) close() error { return errors.Join(p.Slots.close(), p.Extent.Close()) }

// Drop unmaps and unlinks one extent, whose bytes return to the budget. A client
// may map the file for as long as it likes, so its memory is taken out from under
// the mapping: what is read there from now on is zero, the generation words
// included, which tells a late loader that its load has failed.
func (h *HostArena) Drop(p HostPart) {
	section := p.Slots.index
	if err := p.close(); err != nil {
		h.arena.cfg.Log.Warn("closing a host extent", zap.String("path", p.Extent.Path()), zap.Error(err))
	}
	h.arena.discard(section, h.arena.holding(section), extent.DiscardHost)
}

// Leaving is how many extents are gone whose files could not be removed yet.
// Their room stays taken, and each Grow tries again. It waits for nothing.
func (h *HostArena) Leaving() int { return int(h.arena.left.Load()) }

// Removed counts the extents of an earlier agent that are gone because they could
// not be taken over: damaged, never finished, of another layout, or beyond the size.
func (h *HostArena) Removed() uint64 { return h.arena.removed.Load() }

// ExtentBytes is what the slots of one extent take; see ArenaConfig.
func (h *HostArena) ExtentBytes() uint64 { return h.arena.cfg.ExtentBytes }

// Room is how many bytes of the budget no extent takes, unclaimed ones included. It
// waits for nothing.
func (h *HostArena) Room() uint64 { return h.arena.room() }

// MostSlots is how many slots of slotBytes the largest extent has.
func (h *HostArena) MostSlots(slotBytes uint64) uint64 { return h.arena.mostSlots(slotBytes) }

// Close unmaps the given parts and unlocks the directory. With keep all files
// stay for the next agent, the session table too. Otherwise everything is
// unlinked that the arena made, unclaimed extents included, and the directory if
// it made that too and nothing else is in it.
func (h *HostArena) Close(parts []HostPart, keep bool) error {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.close())
	}
	if keep {
		return errors.Join(append(errs, h.arena.table.close())...)
	}
	for section, held := range h.arena.all() {
		errs = append(errs, unlink(h.arena.path(section, held.extent)))
	}
	// Unlink before unlocking: the next agent must not find this table.
	errs = append(errs, unlink(h.arena.table.path), h.arena.table.close())
	if h.arena.madeDir {
		// Somebody else's files in it are a reason to keep it, not an error.
		_ = os.Remove(h.arena.cfg.Dir)
	}
	return errors.Join(errs...)
}

// Abandon leaves everything as if the agent had been killed now.
func (h *HostArena) Abandon(parts []HostPart) {
	if err := h.Close(parts, true); err != nil {
		h.arena.cfg.Log.Warn("abandoning the host arena", zap.Error(err))
	}
}
