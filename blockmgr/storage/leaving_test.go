package storage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// obstruct puts something at path that no file removal removes, and returns how
// to take it away.
func obstruct(t *testing.T, path string) (clear func()) {
	t.Helper()
	if err := errors.Join(os.Rename(path, path+"-aside"), os.MkdirAll(filepath.Join(path, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.RemoveAll(path), os.Rename(path+"-aside", path)); err != nil {
			t.Fatal(err)
		}
	}
}

// A file that stays takes room that nobody else may be given.
func TestExtentThatCannotBeRemovedKeepsItsRoomUntilItIsGone(t *testing.T) {
	t.Run("host", func(t *testing.T) {
		h := openHost(t, hostConfig(t.TempDir()))
		dropped, kept := growHost(t, h, nsA), growHost(t, h, nsA)
		clearWay := obstruct(t, dropped.Extent.path)
		h.Drop(dropped)
		if _, err := h.Grow(hostIndex(t, h, nsA), testSlot, 1, 0); !errors.Is(err, ErrFull) || h.Leaving() != 1 {
			t.Errorf("%d extents leave, another one: %v", h.Leaving(), err)
		}
		clearWay()
		next := growHost(t, h, nsA)
		if _, err := os.Stat(dropped.Extent.path); !errors.Is(err, os.ErrNotExist) || h.Leaving() != 0 {
			t.Errorf("%d extents leave, the dropped file: %v", h.Leaving(), err)
		}
		if err := h.Close([]HostPart{kept, next}, false); err != nil {
			t.Error(err)
		}
	})
	t.Run("disk", func(t *testing.T) {
		d := openDisk(t, diskConfig(t.TempDir()))
		dropped, kept := growDisk(t, d, nsA), growDisk(t, d, nsA)
		clearWay := obstruct(t, dropped.Extent.path)
		d.Drop(dropped)
		if _, err := d.Grow(0, testSlot, 1, 0); !errors.Is(err, ErrFull) || d.Leaving() != 1 {
			t.Errorf("%d extents leave, another one: %v", d.Leaving(), err)
		}
		clearWay()
		next := growDisk(t, d, nsA)
		if _, err := os.Stat(dropped.Extent.path); !errors.Is(err, os.ErrNotExist) || d.Leaving() != 0 {
			t.Errorf("%d extents leave, the dropped file: %v", d.Leaving(), err)
		}
		if err := d.Close([]DiskPart{kept, next}); err != nil {
			t.Error(err)
		}
	})
}
