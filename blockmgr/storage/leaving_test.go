package storage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// obstruct puts a directory that is not empty at path, moves away what is there, and
// returns how to undo that.
func obstruct(t *testing.T, path string) (undo func()) {
	t.Helper()
	err := os.Rename(path, path+"-moved")
	there := err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	noError(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	return func() {
		err := os.RemoveAll(path)
		if there {
			err = errors.Join(err, os.Rename(path+"-moved", path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A file that stays takes room that nobody else may be given.
func TestExtentThatCannotBeRemovedKeepsItsRoomUntilItIsGone(t *testing.T) {
	t.Run("host", func(t *testing.T) {
		h := openHost(t, hostConfig(t.TempDir()))
		dropped, kept := growHost(t, h, nsA), growHost(t, h, nsA)
		undo := obstruct(t, dropped.Extent.Path()+extent.UnfinishedSuffix)
		h.Drop(dropped)
		if _, err := h.Grow(indexOf(t, h.arena, nsA), testSlot, 1, 0); !errors.Is(err, ErrFull) || h.Leaving() != 1 {
			t.Errorf("%d extents leave, another one: %v", h.Leaving(), err)
		}
		undo()
		next := growHost(t, h, nsA)
		if _, err := os.Stat(dropped.Extent.Path()); !errors.Is(err, os.ErrNotExist) || h.Leaving() != 0 {
			t.Errorf("%d extents leave, the dropped file: %v", h.Leaving(), err)
		}
		if err := h.Close([]HostExtent{kept, next}, false); err != nil {
			t.Error(err)
		}
	})
	t.Run("disk", func(t *testing.T) {
		d := openDisk(t, diskConfig(t.TempDir()))
		dropped, kept := growDisk(t, d, nsA), growDisk(t, d, nsA)
		undo := obstruct(t, dropped.Extent.Path())
		d.Drop(dropped)
		if _, err := d.Grow(0, testSlot, 1, 0); !errors.Is(err, ErrFull) || d.Leaving() != 1 {
			t.Errorf("%d extents leave, another one: %v", d.Leaving(), err)
		}
		undo()
		next := growDisk(t, d, nsA)
		if _, err := os.Stat(dropped.Extent.Path()); !errors.Is(err, os.ErrNotExist) || d.Leaving() != 0 {
			t.Errorf("%d extents leave, the dropped file: %v", d.Leaving(), err)
		}
		if err := d.Close([]DiskExtent{kept, next}); err != nil {
			t.Error(err)
		}
	})
}

// A disk that fails to read costs no blocks: they are found once it works.
func TestExtentThatTheDiskFailsToReadStaysForTheNextStart(t *testing.T) {
	cfg := diskConfig(t.TempDir())
	d := openDisk(t, cfg)
	noError(t, d.Close([]DiskExtent{growDisk(t, d, nsA)}))
	sick := cfg
	sick.Disk.Wrap = func(_ string, f extent.File) extent.File {
		return &storagetest.Faulty{File: f, Plan: func(op storagetest.Op, n int) storagetest.Fault {
			if op == storagetest.OpRead && n > 1 { // the first read is of the section's head
				return storagetest.FaultEIO
			}
			return storagetest.FaultNone
		}}
	}
	d = openDisk(t, sick)
	if parts := slices.Collect(d.Claim(0)); len(parts) != 0 {
		t.Errorf("%d extents claimed", len(parts))
	}
	noError(t, d.Close(nil))
	d = openDisk(t, cfg)
	parts := slices.Collect(d.Claim(0))
	if len(parts) != 1 {
		t.Errorf("%d extents are left", len(parts))
	}
	noError(t, d.Close(parts))
}
