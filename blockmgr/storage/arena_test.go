package storage

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const testSlot = 2 * PageSize

// nsA and nsB are two namespaces of the tests.
var nsA, nsB = kv.NamespaceID{1}, kv.NamespaceID{2}

func diskConfig(dir string) ArenaConfig {
	return ArenaConfig{Dir: dir, Bytes: 8 * testSlot, ExtentBytes: 4 * testSlot, Log: zap.NewNop()}
}

func openDisk(t *testing.T, cfg ArenaConfig) *DiskArena {
	t.Helper()
	d, err := OpenDiskArena(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// indexOf enters a namespace of slots of testSlot bytes.
func indexOf(t *testing.T, a *arena, id kv.NamespaceID) uint32 {
	t.Helper()
	ns, err := a.Namespace(id, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// growDisk opens a namespace and makes one extent for it.
func growDisk(t *testing.T, d *DiskArena, id kv.NamespaceID) DiskExtent {
	t.Helper()
	ns := indexOf(t, d.arena, id)
	part, err := d.Grow(ns, testSlot, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return part
}

func TestDiskArenaComesBackWithItsRecordsAndBytes(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, diskConfig(dir))
	part := growDisk(t, d, nsA)
	want := Record{Key: kv.BlockKey{9}.InGroup(0), Generation: 5, State: StateSealed, Checksum: 77}
	data := extent.AlignedBytes(testSlot)
	copy(data, "the bytes of a block")
	noError(t, part.Extent.WriteSlot(2, data, extent.Life{}))
	part.Slots.Put(2, &want)
	pages := part.Slots.TakeDirty(nil)
	if err := WritePages(pages); err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	if again := part.Slots.TakeDirty(nil); len(again) != 0 {
		t.Errorf("%d pages are still dirty", len(again))
	}
	noError(t, d.Close([]DiskExtent{part}))

	d = openDisk(t, diskConfig(dir))
	ns := indexOf(t, d.arena, nsA)
	parts := slices.Collect(d.Claim(ns))
	if len(parts) != 1 || d.Unclaimed(ns) != 0 {
		t.Fatalf("claimed %d extents", len(parts))
	}
	if got, err := parts[0].Slots.Get(2); err != nil || got != want {
		t.Errorf("record %+v, %v", got, err)
	}
	if got, err := parts[0].Slots.Get(1); err != nil || got.State != StateFree || got.Generation != 1 {
		t.Errorf("free record %+v, %v", got, err)
	}
	read := extent.AlignedBytes(testSlot)
	if err := parts[0].Extent.ReadSlot(2, read, extent.Life{}); err != nil || !bytes.Equal(read, data) {
		t.Errorf("bytes differ, %v", err)
	}
	noError(t, d.Close(parts))
}

func TestSecondAgentOnAnArenaIsRefused(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, diskConfig(dir))
	if _, err := OpenDiskArena(diskConfig(dir)); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second open: %v", err)
	}
	noError(t, d.Close(nil))
	host := t.TempDir()
	cfg := ArenaConfig{Dir: host, Bytes: 1 << 20, ExtentBytes: 1 << 16, Log: zap.NewNop()}
	h := openHost(t, cfg)
	if _, err := OpenHostArena(cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	noError(t, h.Close(nil, false))
}
