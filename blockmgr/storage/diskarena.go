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

// DiskArena is the node's disk tier. Its extents outlive the agent: an arena
// with the same version and extent size is opened with the blocks it had.
type DiskArena struct {
	arena *arena
	// unclaimed are the extents found at start whose namespace nobody has opened
	// yet. Guarded by arena.mu.
	unclaimed map[uint32]DiskPart
}

// DiskPart is one extent of a disk arena with its records.
type DiskPart struct {
	ID     uint32
	Extent *DiskExtent
	Slots  *Section
}

// OpenDiskArena locks the directory and finds the extents of an earlier agent.
func OpenDiskArena(cfg ArenaConfig) (*DiskArena, error) {
	a, reused, err := openArena(cfg, KindDisk)
	if err != nil {
		return nil, err
	}
	d := &DiskArena{arena: a, unclaimed: map[uint32]DiskPart{}}
	found, err := a.extentFiles()
	if err != nil {
		return nil, errors.Join(err, a.table.close())
	}
	var drop []uint32
	var used uint64
	for _, id := range found {
		part, ns, err := d.reopen(id, reused)
		if err == nil && used+part.Extent.geo.FileBytes() > cfg.Bytes {
			err = errors.Join(fmt.Errorf("disk size %d is used up", cfg.Bytes), part.close())
		}
		if err != nil {
			cfg.Log.Warn("disk extent is dropped", zap.String("path", a.extentPath(id)), zap.Error(err))
			drop = append(drop, id)
			continue
		}
		used += part.Extent.geo.FileBytes()
		d.unclaimed[id] = part
		a.extents[id] = holding{part.Extent.geo.FileBytes(), ns}
	}
	if err := a.removeExtents(drop); err != nil {
		return nil, errors.Join(err, d.Close(nil))
	}
	return d, nil
}

// reopen opens an extent of an earlier agent. Its records say whose it is.
func (d *DiskArena) reopen(id uint32, reused bool) (DiskPart, uint32, error) {
	if !reused {
		return DiskPart{}, 0, errors.New("its slot table is gone")
	}
	path := d.arena.extentPath(id)
	st, err := os.Stat(path)
	if err != nil {
		return DiskPart{}, 0, err
	}
	// The first page of records is enough to learn the namespace, and with it how
	// many records there are.
	probe, err := d.arena.table.section(id, 0, PageSize/RecordSize, false)
	if err != nil {
		return DiskPart{}, 0, err
	}
	ns, ok := probe.Namespace()
	if err := probe.close(); err != nil {
		return DiskPart{}, 0, err
	}
	item, known := d.arena.table.item(ns)
	if !ok || !known || item.slotBytes == 0 {
		return DiskPart{}, 0, errors.New("its records name no namespace")
	}
	geo, err := DiskGeometry(uint64(st.Size()), item.slotBytes)
	if err == nil && geo.Slots > d.arena.table.header.stride {
		err = fmt.Errorf("%d slots, want at most %d", geo.Slots, d.arena.table.header.stride)
	}
	if err != nil {
		return DiskPart{}, 0, err
	}
	ext, err := OpenDiskExtent(path, geo, d.arena.cfg.Disk)
	if err != nil {
		return DiskPart{}, 0, err
	}
	slots, err := d.arena.table.section(id, ns, geo.Slots, false)
	if err != nil {
		return DiskPart{}, 0, errors.Join(err, ext.Close())
	}
	return DiskPart{ID: id, Extent: ext, Slots: slots}, ns, nil
}

// Namespace enters a namespace and returns the index that its records carry.
func (d *DiskArena) Namespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	return d.arena.namespace(id, slotBytes)
}

// Claim hands out the extents that namespace ns had before the restart.
func (d *DiskArena) Claim(ns uint32) []DiskPart {
	d.arena.mu.Lock()
	defer d.arena.mu.Unlock()
	var parts []DiskPart
	for id, p := range d.unclaimed {
		if d.arena.extents[id].ns == ns {
			parts = append(parts, p)
			delete(d.unclaimed, id)
		}
	}
	slices.SortFunc(parts, func(a, b DiskPart) int { return cmp.Compare(a.ID, b.ID) })
	return parts
}

// Grow makes one extent for namespace ns. When the budget is used, an extent
// of a namespace that nobody has opened since the restart yields; ErrFull
// means that there is none.
func (d *DiskArena) Grow(ns uint32, slotBytes uint64) (DiskPart, error) {
	for {
		id, bytes, err := d.arena.reserve(ns, slotBytes)
		if errors.Is(err, ErrFull) && d.yield() {
			continue
		}
		if err != nil {
			return DiskPart{}, err
		}
		part, err := d.build(id, ns, bytes, slotBytes)
		if err != nil {
			d.arena.release(id)
		}
		return part, err
	}
}

// yield drops one unclaimed extent and reports whether there was one.
func (d *DiskArena) yield() bool {
	d.arena.mu.Lock()
	var part DiskPart
	for id, p := range d.unclaimed {
		part = p
		delete(d.unclaimed, id)
		break
	}
	d.arena.mu.Unlock()
	if part.Extent == nil {
		return false
	}
	d.Drop(part)
	return true
}

// Drop closes and removes one extent, whose bytes return to the budget.
func (d *DiskArena) Drop(p DiskPart) {
	// The id is free for another extent only when the file is gone.
	if err := errors.Join(p.close(), d.arena.removeExtents([]uint32{p.ID})); err != nil {
		d.arena.cfg.Log.Warn("dropping a disk extent", zap.String("path", p.Extent.path), zap.Error(err))
	}
	d.arena.release(p.ID)
}

func (d *DiskArena) build(id, ns uint32, bytes, slotBytes uint64) (DiskPart, error) {
	geo, err := DiskGeometry(bytes, slotBytes)
	if err != nil {
		return DiskPart{}, err
	}
	slots, err := d.arena.table.section(id, ns, geo.Slots, true)
	if err != nil {
		return DiskPart{}, err
	}
	// The records are written before the file exists: whatever an earlier extent
	// of this id left in the table must not be taken for this one's blocks after
	// a crash.
	if err := WritePages(slots.TakeDirty(nil)); err != nil {
		return DiskPart{}, errors.Join(err, slots.close())
	}
	ext, err := CreateDiskExtent(d.arena.extentPath(id), geo, d.arena.cfg.Disk)
	if err != nil {
		return DiskPart{}, errors.Join(err, slots.close())
	}
	if !ext.direct && d.arena.cfg.Disk.Direct != DirectIOOff {
		d.arena.cfg.Log.Info("disk extent goes through the page cache: no O_DIRECT here", zap.String("path", ext.path))
	}
	return DiskPart{ID: id, Extent: ext, Slots: slots}, nil
}

func (p DiskPart) close() error { return errors.Join(p.Slots.close(), p.Extent.Close()) }

// Close closes the given parts and the unclaimed ones and unlocks the
// directory. Everything stays on disk.
func (d *DiskArena) Close(parts []DiskPart) error {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.close())
	}
	for _, p := range d.unclaimed {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs, d.arena.table.close())...)
}
