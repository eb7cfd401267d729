package storage

import (
	"errors"
	"fmt"
	"iter"
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/sealed"
)

// DiskArena is the node's disk tier. Its extents outlive the agent and the boot: an
// arena of the same version is opened with the blocks it had, unless ArenaConfig
// asks for another extent size.
type DiskArena struct{ *arena }

// DiskExtent is one extent of a disk arena with its records.
type DiskExtent struct {
	// ID names the extent. No other extent of the arena ever has it.
	ID     uint32
	Extent *extent.Disk
	Slots  *Section
}

// OpenDiskArena locks the directory and takes over the extents of an earlier agent. sealed.ErrKey: an
// earlier agent had another key, or none, and nothing has changed; see ArenaConfig.KeyReset.
func OpenDiskArena(cfg ArenaConfig) (*DiskArena, error) {
	a, err := openArena(cfg, kindDisk, unlink)
	if err != nil {
		return nil, err
	}
	return &DiskArena{a}, nil
}

// errOtherKey is why an arena was emptied that was written with another key, or with none.
var errOtherKey = errors.New("it was written with another key, or with none")

// checkKey returns an error unless the arena in cfg.Dir is new or was written with cfg.Key. With KeyReset it
// reports an arena with another key instead. An arena with an empty slot table is new, and gets its slots.key
// before the table has a header: a table with a header and without slots.key is that of an arena in clear.
// The caller has the table locked.
func (cfg *ArenaConfig) checkKey(kind arenaKind, emptyTable bool) (otherKey bool, err error) {
	if kind != kindDisk {
		return false, nil
	}
	if emptyTable {
		if sealed.Check(cfg.Dir, cfg.Key) == nil {
			return false, nil
		}
		if err := sealed.Remove(cfg.Dir); err != nil || cfg.Key == nil { // no table, no block that it could open
			return false, err
		}
		_, err := sealed.Open(cfg.Dir, cfg.Key)
		return false, err
	}
	err = sealed.Check(cfg.Dir, cfg.Key)
	if errors.Is(err, sealed.ErrKey) && cfg.KeyReset {
		return true, nil
	}
	return false, err
}

// openKeys sets a.keys. It gives an arena that was emptied for its key another slots.key, or none.
func (a *arena) openKeys(otherKey bool) (err error) {
	if otherKey {
		if err := sealed.Remove(a.cfg.Dir); err != nil {
			return err
		}
	}
	if a.cfg.Key == nil || a.kind != kindDisk {
		return nil
	}
	if a.keys, err = sealed.Open(a.cfg.Dir, a.cfg.Key); err == nil {
		a.cfg.Log.Info("disk tier is encrypted", zap.Stringer("key", a.cfg.Key))
	}
	return err
}

func diskGeometry(slots uint32, slotBytes uint64, key *sealed.Key) extent.Geometry {
	geo := extent.DiskGeometry(slots, slotBytes)
	if key != nil {
		geo.SealBytes = extent.SealBytes
	}
	return geo
}

// DiskStride returns the bytes on disk of a slot of slotBytes in an arena with a key, nil for none.
func DiskStride(slotBytes uint64, key *sealed.Key) uint64 {
	return diskGeometry(1, slotBytes, key).Stride()
}

// options returns how the file of an extent is opened.
func (d *DiskArena) options(head *sectionHead) (o extent.DiskOptions, err error) {
	o = d.cfg.Disk
	if d.keys == nil {
		return o, nil
	}
	item, ok := d.table.item(head.namespace)
	if !ok {
		return o, fmt.Errorf("disk extent %d: namespace %d is unknown", head.extent, head.namespace)
	}
	o.Cipher, err = d.keys.Extent(item.id, head.extent)
	return o, err
}

// Claim opens the extents that namespace ns had before the restart, one after the
// other, and yields them, oldest first. An extent that cannot be opened is dropped,
// with a log line. An extent that the disk fails to read stays unclaimed, for the
// next start.
func (d *DiskArena) Claim(ns uint32) iter.Seq[DiskExtent] {
	return func(yield func(DiskExtent) bool) {
		sections := d.takeUnclaimed(ns)
		for i, section := range sections {
			opened, ok := d.claimOne(section)
			if !ok || yield(opened) {
				continue
			}
			for _, left := range sections[i+1:] {
				d.unclaim(left)
			}
			return
		}
	}
}

// claimOne opens an extent that takeUnclaimed returned. ok is false when that fails: after a device
// error, or while the arena closes, the extent is unclaimed again; after any other error it is
// dropped.
func (d *DiskArena) claimOne(section uint32) (opened DiskExtent, ok bool) {
	e := d.entry(section)
	opened, err := d.reopen(section, &e.sectionHead)
	if err == nil {
		return opened, true
	}
	path := zap.String("path", d.path(section, e.extent))
	if errors.Is(err, unix.EIO) || errors.Is(err, os.ErrClosed) {
		d.cfg.Log.Warn("disk extent is left for the next start", path, zap.Error(err))
		d.unclaim(section)
		return DiskExtent{}, false
	}
	d.cfg.Log.Warn("disk extent is dropped", path, zap.Error(err))
	d.removed.Add(1)
	d.discard(section, e)
	return DiskExtent{}, false
}

// reopen opens the file and the records of an extent that an earlier agent made.
func (d *DiskArena) reopen(section uint32, head *sectionHead) (DiskExtent, error) {
	o, err := d.options(head)
	if err != nil {
		return DiskExtent{}, err
	}
	ext, err := extent.OpenDisk(d.path(section, head.extent), d.geometry(head), o)
	if err != nil {
		return DiskExtent{}, err
	}
	slots, err := d.table.openSection(section, *head)
	if err != nil {
		return DiskExtent{}, errors.Join(err, ext.Close())
	}
	return DiskExtent{head.extent, ext, slots}, nil
}

// Grow makes one extent for namespace ns. The extent has ExtentBytes of slots of slotBytes
// each, or the rest of the budget, but at least minSlots and, unless maxSlots is zero, at most
// maxSlots. When the budget is used up, Grow drops the oldest unclaimed extent. ErrFull means
// that there is no unclaimed extent.
func (d *DiskArena) Grow(ns uint32, slotBytes, minSlots, maxSlots uint64) (DiskExtent, error) {
	section, head, err := d.reserve(need{ns, slotBytes, minSlots, maxSlots})
	if err != nil {
		return DiskExtent{}, err
	}
	opened, err := d.build(section, head)
	if err != nil {
		d.release(section)
		return DiskExtent{}, err
	}
	return opened, nil
}

// build makes the section before the file, so that a file with the extent's id proves that the
// section is complete. The file needs no temporary name: an unfinished file differs in size
// from its section, and a block that was not written fails its checksum.
func (d *DiskArena) build(section uint32, head sectionHead) (DiskExtent, error) {
	slots, err := d.table.createSection(section, head)
	if err != nil {
		return DiskExtent{}, err
	}
	o, err := d.options(&head)
	if err != nil {
		return DiskExtent{}, errors.Join(err, slots.close())
	}
	ext, err := extent.CreateDisk(d.path(section, head.extent), d.geometry(&head), o)
	if err != nil {
		return DiskExtent{}, errors.Join(err, slots.close())
	}
	if why := ext.DirectRefusal(); why != "" {
		d.cfg.Log.Info("disk extent goes through the page cache", zap.String("path", ext.Path()), zap.String("why", why))
	}
	if ext.Sparse() {
		d.cfg.Log.Info("space for a disk extent is not reserved: writes will fail when the disk is full", zap.String("path", ext.Path()))
	}
	return DiskExtent{head.extent, ext, slots}, nil
}

func (p DiskExtent) close() error { return errors.Join(p.Slots.close(), p.Extent.Close()) }

// Drop closes and removes one extent, whose bytes return to the budget.
func (d *DiskArena) Drop(p DiskExtent) {
	section := p.Slots.index
	if err := p.close(); err != nil {
		d.cfg.Log.Warn("disk extent does not close cleanly", zap.String("path", p.Extent.Path()), zap.Error(err))
	}
	d.discard(section, d.entry(section))
}

// Sync returns when all pages that WritePages wrote before are on stable storage.
// Each extent syncs the bytes of its blocks itself.
func (d *DiskArena) Sync() error {
	if err := d.table.io.Sync(); err != nil {
		return fmt.Errorf("slot table %s: sync: %w", d.table.path, err)
	}
	return nil
}

// Close closes the given extents, which are all that callers still have open, and unlocks the
// directory. Everything stays on disk. Close writes nothing: the caller writes dirty pages before.
func (d *DiskArena) Close(extents []DiskExtent) error {
	var errs []error
	for _, p := range extents {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs, d.table.close())...)
}

// Abandon leaves the files as a kill of the agent would.
func (d *DiskArena) Abandon(extents []DiskExtent) {
	if err := d.Close(extents); err != nil {
		d.cfg.Log.Warn("abandoned disk arena does not close cleanly", zap.Error(err))
	}
}
