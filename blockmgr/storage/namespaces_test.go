package storage

import (
	"errors"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// crowd opens a host arena after a restart in which every entry of the directory
// has an extent, those of the first and the last namespace being the two oldest.
func crowd(t *testing.T) (h *HostArena, ids []kv.NamespaceID) {
	cfg := hostConfig(t.TempDir())
	cfg.Bytes = 2 * MaxNamespaces * 4 * testSlot
	h = openHost(t, cfg)
	for i := range MaxNamespaces {
		ids = append(ids, kv.NamespaceID{7, byte(i)})
	}
	var parts []HostExtent
	for i := range ids {
		parts = append(parts, growHost(t, h, ids[(i+MaxNamespaces-1)%MaxNamespaces]))
	}
	noError(t, h.Close(parts, true))
	return openHost(t, cfg), ids
}

func TestNamespaceNobodyAskedForMakesRoomInTheDirectory(t *testing.T) {
	h, ids := crowd(t)
	defer h.Close(nil, true)
	if _, err := h.Sessions().Begin(1, ids[MaxNamespaces-1]); err != nil {
		t.Fatal(err)
	}
	first := indexOf(t, h.arena, ids[0]) // claimed: it is not asked
	parts := h.Claim(first)
	h.Forget(first) // but its extents are not gone yet
	defer func() {
		for _, p := range parts {
			p.close()
		}
	}()
	second := indexOf(t, h.arena, kv.NamespaceID{8})
	if _, n := h.table.item(second); !n || h.Extents() != MaxNamespaces-1 || h.Unclaimed(second) != 0 {
		t.Errorf("%d extents are left, %d of the newcomer", h.Extents(), h.Unclaimed(second))
	}
	if len(parts) != 1 || h.Unclaimed(indexOf(t, h.arena, ids[MaxNamespaces-1])) == 0 {
		t.Error("a namespace that is in use, or whose processes live, lost its extents")
	}
	if h.Unclaimed(indexOf(t, h.arena, ids[1])) != 0 {
		t.Error("the oldest of the others has kept its extents")
	}
}

func TestDirectoryIsFullWhenEveryNamespaceIsNeeded(t *testing.T) {
	h, ids := crowd(t)
	defer h.Close(nil, true)
	for i := range ids {
		if i%2 == 0 {
			indexOf(t, h.arena, ids[i])
		} else if _, err := h.Sessions().Begin(uint64(i), ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	if ns, err := h.Namespace(kv.NamespaceID{8}, testSlot); !errors.Is(err, ErrNamespaces) {
		t.Errorf("got index %d, %v, want %v", ns, err, ErrNamespaces)
	}
	if h.Extents() != MaxNamespaces {
		t.Errorf("%d extents are left", h.Extents())
	}
	h.Sessions().End(5)
	if ns, err := h.Namespace(kv.NamespaceID{8}, testSlot); err != nil || h.Extents() != MaxNamespaces-1 {
		t.Errorf("got index %d, %v; %d extents", ns, err, h.Extents())
	}
}

// An extent that was not handed out yet when its claim is broken off waits for the
// next one.
func TestClaimThatIsBrokenOffLosesNothing(t *testing.T) {
	cfg := diskConfig(t.TempDir())
	d := openDisk(t, cfg)
	parts := []DiskExtent{growDisk(t, d, nsA), growDisk(t, d, nsA)}
	noError(t, d.Close(parts))
	d = openDisk(t, cfg)
	defer d.Close(nil)
	ns := indexOf(t, d.arena, nsA)
	for p := range d.Claim(ns) {
		defer p.close()
		break
	}
	if n := d.Unclaimed(ns); n != 4 {
		t.Errorf("%d slots wait to be claimed, want those of one extent", n)
	}
}

// Where files cannot be removed, a newcomer costs one namespace its extents, and the next
// one none; when they can be again, there is a place.
func TestFilesThatCannotBeRemovedCostOneNamespaceItsExtents(t *testing.T) {
	h, ids := crowd(t)
	defer h.Close(nil, true)
	tries := 0
	remove := h.removeFile
	h.removeFile = func(string) error { tries++; return errors.New("read-only file system") }
	for range 2 {
		if _, err := h.Namespace(kv.NamespaceID{8}, testSlot); !errors.Is(err, ErrNamespaces) {
			t.Errorf("got error %v", err)
		}
		if left := h.Leaving(); left != 1 {
			t.Errorf("%d of %d extents are leaving", left, len(ids))
		}
	}
	if tries != 2 {
		t.Errorf("%d removals were tried, want that of one file in each call", tries)
	}
	h.removeFile = remove
	indexOf(t, h.arena, kv.NamespaceID{8})
	if h.Leaving() != 0 || h.Extents() != len(ids)-1 {
		t.Errorf("%d extents are leaving and %d are left", h.Leaving(), h.Extents())
	}
}
