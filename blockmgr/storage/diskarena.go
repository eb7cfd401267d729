package storage

import (
	"errors"
	"fmt"
	"iter"
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// DiskArena is the node's disk tier. Its extents outlive the agent and the
// boot: an arena of the same version, and of the extent size if one is asked for,
// is opened with the blocks it had.
type DiskArena struct{ arena *arena }

// DiskPart is one extent of a disk arena with its records.
type DiskPart struct {
	// ID names the extent. No other extent of the arena ever has it.
	ID     uint32
	Extent *extent.Disk
	Slots  *Section
}

// OpenDiskArena locks the directory and finds what an earlier agent left.
func OpenDiskArena(cfg ArenaConfig) (*DiskArena, error) {
	a, err := openArena(cfg, KindDisk)
	if err != nil {
		return nil, err
	}
	return &DiskArena{a}, nil
}

// Namespace enters a namespace whose slots are slotBytes long, a multiple of
// PageSize, and returns the index that its records carry, which is its own until
// Forget. When the directory is full, a namespace that nobody has claimed since the
// restart loses its extents; ErrNamespaces means that there is none, or that the files
// of one cannot be removed.
func (d *DiskArena) Namespace(id kv.NamespaceID, slotBytes uint64) (uint32, error) {
	return d.arena.namespace(id, slotBytes, unlink)
}

// Forget gives the index of a namespace back, whose extents have been dropped:
// another namespace may get it.
func (d *DiskArena) Forget(ns uint32) { d.arena.forget(ns) }

// Unclaimed is how many slots Claim would find.
func (d *DiskArena) Unclaimed(ns uint32) int { return d.arena.unclaimedSlots(ns) }

// Claim opens the extents that namespace ns had before the restart, one after the
// other, and hands them out, oldest first. One that cannot be opened is dropped,
// with a log line; but one that the disk fails to read stays for the next start,
// unless the room is wanted.
func (d *DiskArena) Claim(ns uint32) iter.Seq[DiskPart] {
	return func(yield func(DiskPart) bool) {
		sections := d.arena.takeUnclaimed(ns)
		for i, section := range sections {
			held := d.arena.holding(section)
			part, err := d.reopen(section, &held.sectionHead)
			if errors.Is(err, unix.EIO) || errors.Is(err, os.ErrClosed) {
				d.arena.cfg.Log.Warn("disk extent is left for the next start", zap.String("path", d.arena.path(section, held.extent)), zap.Error(err))
				d.arena.unclaim(section)
				continue
			}
			if err != nil {
				d.arena.cfg.Log.Warn("disk extent is dropped", zap.String("path", d.arena.path(section, held.extent)), zap.Error(err))
				d.arena.removed.Add(1)
				d.arena.discard(section, held, unlink)
				continue
			}
			if !yield(part) {
				for _, left := range sections[i+1:] {
					d.arena.unclaim(left)
				}
				return
			}
		}
	}
}

func (d *DiskArena) reopen(section uint32, head *sectionHead) (DiskPart, error) {
	ext, err := extent.OpenDisk(d.arena.path(section, head.extent), d.arena.geometry(head), d.arena.cfg.Disk)
	if err != nil {
		return DiskPart{}, err
	}
	slots, err := d.arena.table.openSection(section, *head)
	if err != nil {
		return DiskPart{}, errors.Join(err, ext.Close())
	}
	return DiskPart{head.extent, ext, slots}, nil
}

// Grow makes one extent for namespace ns, with ExtentBytes of slots of slotBytes
// each or what is left of the budget, but at least minSlots and, unless it is
// zero, at most maxSlots. When the budget is used, an extent of a namespace that
// nobody has claimed since the restart yields; ErrFull means that there is none.
func (d *DiskArena) Grow(ns uint32, slotBytes, minSlots, maxSlots uint64) (DiskPart, error) {
	section, head, err := d.arena.reserve(need{ns, slotBytes, minSlots, maxSlots}, unlink)
	if err != nil {
		return DiskPart{}, err
	}
	part, err := d.build(section, head)
	if err != nil {
		d.arena.release(section)
		return DiskPart{}, err
	}
	return part, nil
}

// build makes the records before the file exists: a file of this id vouches for
// its section. It needs no temporary name, because a file that was not finished
// has another size than the section says, and bytes that never were in it do
// not pass a checksum.
func (d *DiskArena) build(section uint32, head sectionHead) (DiskPart, error) {
	slots, err := d.arena.table.createSection(section, head)
	if err != nil {
		return DiskPart{}, err
	}
	ext, err := extent.CreateDisk(d.arena.path(section, head.extent), d.arena.geometry(&head), d.arena.cfg.Disk)
	if err != nil {
		return DiskPart{}, errors.Join(err, slots.close())
	}
	if why := ext.DirectRefusal(); why != "" {
		d.arena.cfg.Log.Info("disk extent goes through the page cache", zap.String("path", ext.Path()), zap.String("why", why))
	}
	if ext.Sparse() {
		d.arena.cfg.Log.Info("space for a disk extent is not reserved: a full disk will show as failed writes", zap.String("path", ext.Path()))
	}
	return DiskPart{head.extent, ext, slots}, nil
}

func (p DiskPart) close() error { return errors.Join(p.Slots.close(), p.Extent.Close()) }

// Drop closes and removes one extent, whose bytes return to the budget.
func (d *DiskArena) Drop(p DiskPart) {
	section := p.Slots.index
	if err := p.close(); err != nil {
		d.arena.cfg.Log.Warn("closing a disk extent", zap.String("path", p.Extent.Path()), zap.Error(err))
	}
	d.arena.discard(section, d.arena.holding(section), unlink)
}

// Room is how many bytes of the budget no extent takes. It waits for nothing.
func (d *DiskArena) Room() uint64 { return d.arena.room() }

// Leaving is how many extents are gone whose files could not be removed yet.
// Their room stays taken, and each Grow tries again. It waits for nothing.
func (d *DiskArena) Leaving() int { return int(d.arena.left.Load()) }

// Removed counts the extents of an earlier agent that are gone because they could
// not be taken over: damaged, never finished, of another layout, or beyond the size.
func (d *DiskArena) Removed() uint64 { return d.arena.removed.Load() }

// ExtentBytes is what the slots of one extent take; see ArenaConfig.
func (d *DiskArena) ExtentBytes() uint64 { return d.arena.cfg.ExtentBytes }

// MostSlots is how many slots of slotBytes the largest extent has.
func (d *DiskArena) MostSlots(slotBytes uint64) uint64 { return d.arena.mostSlots(slotBytes) }

// Sync returns when all pages that WritePages wrote before are on stable
// storage. The bytes of blocks are synced by their extents.
func (d *DiskArena) Sync() error {
	if err := d.arena.table.io.Sync(); err != nil {
		return fmt.Errorf("slot table %s: sync: %w", d.arena.table.path, err)
	}
	return nil
}

// Close closes the given parts and unlocks the directory. Everything stays on
// disk. It writes nothing: what is dirty was the caller's to write.
func (d *DiskArena) Close(parts []DiskPart) error {
	var errs []error
	for _, p := range parts {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs, d.arena.table.close())...)
}

// Abandon leaves everything as if the agent had been killed now.
func (d *DiskArena) Abandon(parts []DiskPart) {
	if err := d.Close(parts); err != nil {
		d.arena.cfg.Log.Warn("abandoning the disk arena", zap.Error(err))
	}
}
