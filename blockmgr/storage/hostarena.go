package storage

import (
	"errors"
	"os"
	"sync"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// HostArena is the node's shared host memory. Its extents outlive the agent, but not
// the boot: an arena of the same version is opened with the blocks, pins and sessions
// it had, unless ArenaConfig asks for another extent size. The files of an arena that
// cannot be taken over are unlinked; engines that still map them keep the old memory.
type HostArena struct {
	*arena
	// small logs once why extents have small pages, anywhere why they lie on any memory node.
	small, anywhere sync.Once
}

// HostExtent is one extent of a host arena with its records.
type HostExtent struct {
	// ID names the extent to clients. No other extent of the arena ever has it.
	ID     uint32
	Extent *extent.Host
	Slots  *Section
}

// OpenHostArena locks the directory and takes over the extents of an earlier agent.
func OpenHostArena(cfg ArenaConfig) (*HostArena, error) {
	a, err := openArena(cfg, kindHost, extent.DiscardHost)
	if err != nil {
		return nil, err
	}
	return &HostArena{arena: a}, nil
}

// Warm reports whether the arena was taken over from an earlier agent.
func (h *HostArena) Warm() bool { return h.table.sectionsHold }

// Extents counts the extents, unclaimed ones included.
func (h *HostArena) Extents() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.extents)
}

// Sessions returns the arena's session table.
func (h *HostArena) Sessions() *SessionTable { return h.table.sessions }

// Claim maps the extents that namespace ns had before the restart and returns them,
// oldest first. An extent that cannot be mapped is dropped, with a log line.
func (h *HostArena) Claim(ns uint32) []HostExtent {
	var extents []HostExtent
	for _, section := range h.takeUnclaimed(ns) {
		e := h.entry(section)
		opened, err := h.reopen(section, &e.sectionHead)
		if err != nil {
			h.cfg.Log.Warn("host extent is dropped", zap.String("path", h.path(section, e.extent)), zap.Error(err))
			h.removed.Add(1)
			h.discard(section, e)
			continue
		}
		extents = append(extents, opened)
	}
	return extents
}

// reopen maps the file and the records of an extent that an earlier agent made.
func (h *HostArena) reopen(section uint32, head *sectionHead) (HostExtent, error) {
	ext, err := extent.OpenHost(h.path(section, head.extent), h.geometry(head))
	if err != nil {
		return HostExtent{}, err
	}
	slots, err := h.table.openSection(section, *head)
	if err != nil {
		return HostExtent{}, errors.Join(err, ext.Close())
	}
	return HostExtent{head.extent, ext, slots}, nil
}

// Grow makes one extent for namespace ns, as DiskArena.Grow does. The memory of the extent is
// reserved and faulted in. Grow does not drop unclaimed extents of a namespace with a session in
// the session table, because its processes may still copy. ErrFull means that the budget is used
// up by extents of pools or of such namespaces.
func (h *HostArena) Grow(ns uint32, slotBytes, minSlots, maxSlots uint64) (HostExtent, error) {
	section, head, err := h.reserve(need{ns, slotBytes, minSlots, maxSlots})
	if err != nil {
		return HostExtent{}, err
	}
	opened, err := h.build(section, head)
	if err != nil {
		h.release(section)
		return HostExtent{}, err
	}
	return opened, nil
}

// build makes the file of a new extent under a temporary name, and publishes the file when its
// generation words and its section of the slot table are complete. After an error nothing is left
// but the reservation.
func (h *HostArena) build(section uint32, head sectionHead) (opened HostExtent, err error) {
	ext, err := h.create(h.path(section, head.extent), h.geometry(&head))
	if err != nil {
		return HostExtent{}, err
	}
	for i := uint32(0); i < head.slots && err == nil; i++ {
		err = ext.SetGeneration(i, 1)
	}
	var slots *Section
	if err == nil {
		slots, err = h.table.createSection(section, head)
	}
	if err == nil {
		err = ext.Publish()
	}
	if err != nil {
		err = errors.Join(err, ext.Close(), unlink(ext.Path()))
		if slots != nil {
			err = errors.Join(err, slots.close())
		}
		return HostExtent{}, err
	}
	if why := ext.SmallPages(); why != nil && h.fs.InMemory {
		h.small.Do(func() { h.cfg.Log.Info("host extents have small pages", zap.NamedError("reason", why)) })
	}
	return HostExtent{head.extent, ext, slots}, nil
}

// create makes an extent's file in the memory of ArenaConfig.Nodes. Where the kernel refuses these
// nodes, create logs the reason once and takes memory of any node.
func (h *HostArena) create(path string, geo extent.Geometry) (ext *extent.Host, err error) {
	refused := extent.OnNodes(h.cfg.Nodes, func() { ext, err = extent.CreateHost(path, geo) })
	if refused == nil {
		return ext, err
	}
	h.anywhere.Do(func() {
		h.cfg.Log.Warn("host extents lie on any memory node", zap.NamedError("reason", refused))
	})
	return extent.CreateHost(path, geo)
}

func (p HostExtent) close() error { return errors.Join(p.Slots.close(), p.Extent.Close()) }

// Drop unmaps and removes one extent, whose bytes return to the budget. A client may
// map the file for as long as it likes; from now on it reads zeros, generation words
// included. That tells a late loader that its load has failed.
func (h *HostArena) Drop(p HostExtent) {
	section := p.Slots.index
	if err := p.close(); err != nil {
		h.cfg.Log.Warn("host extent does not close cleanly", zap.String("path", p.Extent.Path()), zap.Error(err))
	}
	h.discard(section, h.entry(section))
}

// Close unmaps the given extents and unlocks the directory. With keep all files stay
// for the next agent, the session table too. Without keep Close unlinks everything
// that the arena made, unclaimed extents included. It removes the directory if the
// arena made the directory and nothing else is in it.
func (h *HostArena) Close(extents []HostExtent, keep bool) error {
	var errs []error
	for _, p := range extents {
		errs = append(errs, p.close())
	}
	if keep {
		return errors.Join(append(errs, h.table.close())...)
	}
	h.mu.Lock()
	for section, e := range h.extents {
		errs = append(errs, unlink(h.path(section, e.extent)))
	}
	h.mu.Unlock()
	// Unlink before unlocking: the next agent must not find this table.
	errs = append(errs, unlink(h.table.path), h.table.close())
	if h.madeDir {
		// Somebody else's files in it are a reason to keep it, not an error.
		_ = os.Remove(h.cfg.Dir)
	}
	return errors.Join(errs...)
}

// Abandon leaves everything as if the agent had been killed now.
func (h *HostArena) Abandon(extents []HostExtent) {
	if err := h.Close(extents, true); err != nil {
		h.cfg.Log.Warn("abandoned host arena does not close cleanly", zap.Error(err))
	}
}
