package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const testSlot = 2 * PageSize

// nsA and nsB are two namespaces of the tests.
var nsA, nsB = kv.NamespaceID{1}, kv.NamespaceID{2}

func diskConfig(dir string) ArenaConfig {
	return ArenaConfig{Dir: dir, Bytes: 8 * testSlot, ExtentBytes: 4 * testSlot, Log: zap.NewNop()}
}

// growDisk opens a namespace and makes one extent for it.
func growDisk(t *testing.T, d *DiskArena, id kv.NamespaceID) DiskPart {
	t.Helper()
	ns, err := d.Namespace(id, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	part, err := d.Grow(ns, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	return part
}

func TestDiskArenaComesBackWithItsRecordsAndBytes(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	part := growDisk(t, d, nsA)
	want := Record{Key: kv.BlockKey{9}.InGroup(0), Generation: 5, State: StateSealed, Checksum: 77}
	data := alignedBuffer(t, testSlot)
	copy(data, "the bytes of a block")
	if err := part.Extent.WriteSlot(2, data); err != nil {
		t.Fatal(err)
	}
	part.Slots.Put(2, &want)
	pages := part.Slots.TakeDirty(nil)
	if err := WritePages(pages); err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	if again := part.Slots.TakeDirty(nil); len(again) != 0 {
		t.Errorf("%d pages are still dirty", len(again))
	}
	if err := d.Close([]DiskPart{part}); err != nil {
		t.Fatal(err)
	}

	d, err = OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	ns, err := d.Namespace(nsA, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	parts := d.Claim(ns)
	if len(parts) != 1 || len(d.Claim(ns)) != 0 {
		t.Fatalf("claimed %d extents", len(parts))
	}
	if got, err := parts[0].Slots.Get(2); err != nil || got != want {
		t.Errorf("record %+v, %v", got, err)
	}
	if got, err := parts[0].Slots.Get(1); err != nil || got.State != StateFree || got.Generation != 1 {
		t.Errorf("free record %+v, %v", got, err)
	}
	read := alignedBuffer(t, testSlot)
	if err := parts[0].Extent.ReadSlot(2, read); err != nil || !bytes.Equal(read, data) {
		t.Errorf("bytes differ, %v", err)
	}
	if err := d.Close(parts); err != nil {
		t.Fatal(err)
	}
}

func TestSecondAgentOnAnArenaIsRefused(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDiskArena(diskConfig(dir)); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second open: %v", err)
	}
	if err := d.Close(nil); err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	cfg := ArenaConfig{Dir: host, Bytes: 1 << 20, ExtentBytes: 1 << 16, Log: zap.NewNop()}
	h, err := OpenHostArena(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenHostArena(cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	if err := h.Close(nil); err != nil {
		t.Fatal(err)
	}
}

// rewriteHeader changes the header page of a closed table and fixes its CRC.
func rewriteHeader(t *testing.T, path string, change func(page []byte)) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	change(b)
	binary.LittleEndian.PutUint32(b[4092:], crc32.Checksum(b[:4092], castagnoli()))
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTableThatDoesNotFitIsMadeAnewOrRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(page []byte)
		refuse error
		warn   string
	}{
		{"older version", func(b []byte) { b[8] = 0 }, nil, "version 0, want 1"},
		{"newer version", func(b []byte) { b[8] = 9 }, ErrNewer, ""},
		{"foreign file", func(b []byte) { b[0] = 'X' }, ErrForeign, ""},
		{"another extent size", func(b []byte) { b[18]++ }, nil, "extents of"},
		{"host table", func(b []byte) { b[12] = 1 }, ErrForeign, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			d, err := OpenDiskArena(diskConfig(dir))
			if err != nil {
				t.Fatal(err)
			}
			part := growDisk(t, d, nsA)
			if err := errors.Join(WritePages(part.Slots.TakeDirty(nil)), d.Close([]DiskPart{part})); err != nil {
				t.Fatal(err)
			}
			table := filepath.Join(dir, tableName)
			rewriteHeader(t, table, c.change)
			before, _ := os.ReadFile(table)

			core, logs := observer.New(zap.WarnLevel)
			cfg := diskConfig(dir)
			cfg.Log = zap.New(core)
			d, err = OpenDiskArena(cfg)
			if c.refuse != nil {
				after, _ := os.ReadFile(table)
				if !errors.Is(err, c.refuse) || !bytes.Equal(before, after) {
					t.Fatalf("got %v, want %v and an untouched file", err, c.refuse)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close(nil)
			first, _ := logs.All()[0].ContextMap()["error"].(string)
			if !strings.Contains(first, c.warn) {
				t.Errorf("warning %q, want %q", first, c.warn)
			}
			if files, _ := d.arena.extentFiles(); len(files) != 0 {
				t.Errorf("extents %v are still there", files)
			}
		})
	}
}

func TestTornHeaderIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(nil); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(dir, tableName)
	b, _ := os.ReadFile(table)
	b[100] ^= 1
	if err := os.WriteFile(table, b, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err = OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	d.Close(nil)
}

func TestBudgetIsKeptAndUnclaimedExtentsYield(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	one, two := growDisk(t, d, nsA), growDisk(t, d, nsA)
	if _, err := d.Grow(0, testSlot); !errors.Is(err, ErrFull) {
		t.Errorf("third extent: %v", err)
	}
	parts := []DiskPart{one, two}
	for _, p := range parts {
		if err := WritePages(p.Slots.TakeDirty(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(parts); err != nil {
		t.Fatal(err)
	}

	d, err = OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	b := growDisk(t, d, nsB)
	files, err := d.arena.extentFiles()
	if err != nil || len(files) != 2 {
		t.Errorf("extents %v, %v", files, err)
	}
	ns, err := d.Namespace(nsA, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	left := d.Claim(ns)
	if len(left) != 1 {
		t.Errorf("%d extents of the first namespace are left, want 1", len(left))
	}
	if err := d.Close(append(left, b)); err != nil {
		t.Fatal(err)
	}

	small := diskConfig(dir)
	small.Bytes = 4 * testSlot
	d, err = OpenDiskArena(small)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.unclaimed) > 1 {
		t.Errorf("%d extents in a budget of one", len(d.unclaimed))
	}
	d.Close(nil)
}

func TestNamespaceDirectoryIsBoundedAndReusesUnusedEntries(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	part := growDisk(t, d, nsA)
	fill := func(d *DiskArena, run byte) (named int) {
		for i := range 2 * MaxNamespaces {
			ns, err := d.Namespace(kv.NamespaceID{0xff, run, byte(i)}, testSlot)
			if err != nil {
				continue
			}
			if ns == 0 {
				t.Fatal("an index that has an extent was given away")
			}
			named++
		}
		return named
	}
	// Without extents they keep their index as long as the arena is open: a pool
	// that has yielded everything would share it with another otherwise.
	if n := fill(d, 1); n != MaxNamespaces-1 {
		t.Errorf("%d namespaces got an index, want %d", n, MaxNamespaces-1)
	}
	if ns, err := d.Namespace(kv.NamespaceID{0xff, 1, 0}, testSlot); err != nil || ns != 1 {
		t.Errorf("the index of a namespace without extents became %d, %v", ns, err)
	}
	if _, err := d.Namespace(nsA, 2*testSlot); err == nil {
		t.Error("a namespace with another slot size was accepted")
	}
	if err := d.Close([]DiskPart{part}); err != nil {
		t.Fatal(err)
	}
	if d, err = OpenDiskArena(diskConfig(dir)); err != nil {
		t.Fatal(err)
	}
	defer d.Close(nil)
	if n := fill(d, 2); n != MaxNamespaces-1 {
		t.Errorf("after a restart %d namespaces got an index, want %d", n, MaxNamespaces-1)
	}
}

func TestStaleHostExtentsAreUnlinkedAtOpen(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, extentPrefix+"0000000a")
	if err := os.WriteFile(stale, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "extent-notes.txt")
	if err := os.WriteFile(other, []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := OpenHostArena(ArenaConfig{Dir: dir, Bytes: 1 << 20, ExtentBytes: 1 << 16, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(nil)
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale extent: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("foreign file: %v", err)
	}
}

// On hugetlbfs a file is a whole number of huge pages: what is announced and
// accounted must be that, and slots fill it.
func TestExtentsAreWholeHugePages(t *testing.T) {
	const unit = 1 << 16
	h, err := OpenHostArena(ArenaConfig{Dir: t.TempDir(), Bytes: 3*unit + 5*PageSize, ExtentBytes: unit + PageSize, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	h.arena.fs.Unit = unit
	ns, err := h.Namespace(nsA, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	var parts []HostPart
	defer func() { h.Close(parts) }()
	for _, minSlots := range []uint64{1, 8} {
		part, err := h.Grow(ns, testSlot, minSlots)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
		geo := part.Extent.Geometry()
		st, err := part.Extent.File().Stat()
		if err != nil || uint64(st.Size()) != geo.FileBytes() || geo.FileBytes()%unit != 0 || h.arena.extents[part.ID].bytes != geo.FileBytes() {
			t.Errorf("%+v: file of %d bytes, %d accounted, %v", geo, st.Size(), h.arena.extents[part.ID].bytes, err)
		}
	}
	if a, b := parts[0].Extent.Geometry(), parts[1].Extent.Geometry(); a.Slots != 7 || b.Slots != 15 {
		t.Errorf("%d and %d slots", a.Slots, b.Slots)
	}
	// What is left of the budget is used in whole huge pages as well.
	h.Drop(parts[1])
	parts = parts[:1]
	h.arena.cfg.ExtentBytes = 8 * unit
	rest, err := h.Grow(ns, testSlot, 1)
	if err != nil || h.arena.extents[rest.ID].bytes != 2*unit || rest.Extent.Geometry().FileBytes() != 2*unit {
		t.Fatalf("the rest: %d bytes, %v", h.arena.extents[rest.ID].bytes, err)
	}
	parts = append(parts, rest)
	if _, err := h.Grow(ns, testSlot, 1); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth huge page in a budget of three and a bit: %v", err)
	}
	if _, err := h.Grow(ns, testSlot, 32); err == nil || errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "too small") {
		t.Errorf("an extent larger than the budget: %v", err)
	}
}

func TestDroppedDiskExtentReturnsToTheBudget(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDiskArena(diskConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	a, b := growDisk(t, d, nsA), growDisk(t, d, nsA)
	b.Slots.Put(0, &Record{Key: kv.BlockKey{9}.InGroup(0), Generation: 5, State: StateSealed})
	if err := WritePages(b.Slots.TakeDirty(nil)); err != nil {
		t.Fatal(err)
	}
	ns, err := d.Namespace(nsB, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Grow(ns, testSlot); !errors.Is(err, ErrFull) {
		t.Fatalf("a third extent: %v", err)
	}
	d.Drop(b)
	if _, err := os.Stat(b.Extent.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dropped extent: %v", err)
	}
	c := growDisk(t, d, nsB)
	// As in a crash, nothing more is written: the new extent must not come back
	// with the old one's records.
	if err := d.Close([]DiskPart{a, c}); err != nil {
		t.Fatal(err)
	}
	if d, err = OpenDiskArena(diskConfig(dir)); err != nil {
		t.Fatal(err)
	}
	if ns, err = d.Namespace(nsB, testSlot); err != nil {
		t.Fatal(err)
	}
	parts := d.Claim(ns)
	if len(parts) != 1 {
		t.Fatalf("%d extents of the newcomer", len(parts))
	}
	if r, err := parts[0].Slots.Get(0); err != nil || r.State != StateFree {
		t.Errorf("record %+v, %v", r, err)
	}
	if err := d.Close(parts); err != nil {
		t.Fatal(err)
	}
}
