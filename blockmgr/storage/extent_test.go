package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// alignedBuffer is page-aligned memory, which O_DIRECT needs.
func alignedBuffer(t *testing.T, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func TestHostExtentIsPopulatedMappedAndUnlinked(t *testing.T) {
	dir := t.TempDir()
	h, err := OpenHostArena(ArenaConfig{Dir: dir, Bytes: 1 << 20, ExtentBytes: 1 << 16, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := h.Namespace(nsA, testSlot)
	if err != nil {
		t.Fatal(err)
	}
	part, err := h.Grow(ns, testSlot, 1)
	if err != nil {
		t.Fatal(err)
	}
	geo := part.Extent.Geometry()
	if geo.Slots != 7 || geo.DataOffset != PageSize || geo.FileBytes() > 1<<16 {
		t.Errorf("geometry %+v", geo)
	}
	st, err := part.Extent.File().Stat()
	if err != nil {
		t.Fatal(err)
	}
	if blocks := st.Sys().(*syscall.Stat_t).Blocks * 512; blocks < int64(geo.FileBytes()) {
		t.Errorf("%d bytes are allocated of %d", blocks, geo.FileBytes())
	}
	// What a client writes through the file is what the slot shows.
	if _, err := part.Extent.File().WriteAt([]byte("hello"), geo.Offset(3)); err != nil {
		t.Fatal(err)
	}
	if got := part.Extent.Slot(3)[:5]; string(got) != "hello" {
		t.Errorf("slot holds %q", got)
	}
	if err := part.Extent.SetGeneration(3, 0x0102030405060708); err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 8)
	if _, err := part.Extent.File().ReadAt(word, 3*8); err != nil || binary.LittleEndian.Uint64(word) != 0x0102030405060708 {
		t.Errorf("generation word %x, %v", word, err)
	}
	if err := part.Extent.SetGeneration(7, 1); err == nil {
		t.Error("a generation beyond the extent was set")
	}
	if err := h.Close([]HostPart{part}); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files are left", len(left))
	}
}

func TestTruncatedHostMemoryIsAnErrorNotASignal(t *testing.T) {
	geo, err := HostGeometry(1<<16, testSlot, PageSize)
	if err != nil {
		t.Fatal(err)
	}
	ext, err := CreateHostExtent(filepath.Join(t.TempDir(), "x"), geo)
	if err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	if err := ext.File().Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := ext.ContentSum(1, kv.StoredKey{}, testSlot); !errors.Is(err, ErrMemory) {
		t.Errorf("a checksum of memory that is gone: %v", err)
	}
	if err := ext.SetGeneration(1, 2); !errors.Is(err, ErrMemory) {
		t.Errorf("a generation in memory that is gone: %v", err)
	}
	disk, err := CreateDiskExtent(filepath.Join(t.TempDir(), "d"), Geometry{Slots: 1, SlotBytes: testSlot}, DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := disk.ReadSlot(0, ext.Slot(1)); !errors.Is(err, ErrMemory) {
		t.Errorf("a read into memory that is gone: %v", err)
	}
	if err := disk.WriteSlot(0, ext.Slot(1)); !errors.Is(err, ErrMemory) {
		t.Errorf("a write from memory that is gone: %v", err)
	}
}

func TestGuardPassesOtherPanicsOn(t *testing.T) {
	defer func() {
		if r := recover(); r != "other" {
			t.Errorf("recovered %v", r)
		}
	}()
	_ = Guard(func() { panic("other") })
}

func TestFaultyFileFailsAsPlanned(t *testing.T) {
	geo := Geometry{Slots: 4, SlotBytes: testSlot}
	var plan []Fault
	o := DiskOptions{Wrap: func(f File) File {
		return &Faulty{File: f, Plan: func(op Op, n int) Fault {
			if op == OpAllocate || n > len(plan) {
				return FaultNone
			}
			return plan[n-1]
		}}
	}}
	ext, err := CreateDiskExtent(filepath.Join(t.TempDir(), "x"), geo, o)
	if err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	data := alignedBuffer(t, testSlot)
	for i := range data {
		data[i] = 1
	}
	plan = []Fault{FaultEIO, FaultENOSPC, FaultShort, FaultTorn, FaultNone}
	for i, want := range []error{unix.EIO, unix.ENOSPC, errors.New("short write"), nil, nil} {
		err := ext.WriteSlot(0, data)
		if (err == nil) != (want == nil) || err != nil && !strings.Contains(err.Error(), want.Error()) {
			t.Errorf("write %d: %v, want %v", i, err, want)
		}
	}
	plan = []Fault{FaultShort, FaultTorn, FaultNone}
	read := alignedBuffer(t, testSlot)
	if err := ext.ReadSlot(0, read); err == nil {
		t.Error("a short read passed")
	}
	if err := ext.ReadSlot(0, read); err != nil || bytes.Equal(read, data) {
		t.Errorf("a torn read: %v, equal %v", err, bytes.Equal(read, data))
	}
	if err := ext.ReadSlot(0, read); err != nil || !bytes.Equal(read, data) {
		t.Errorf("a good read: %v", err)
	}
	if err := ext.ReadSlot(4, read); err == nil {
		t.Error("a slot beyond the extent was read")
	}
	if err := ext.ReadSlot(0, read[:PageSize]); err == nil {
		t.Error("half a slot was read")
	}
}

func TestDirectIOModes(t *testing.T) {
	dir := t.TempDir()
	geo := Geometry{Slots: 2, SlotBytes: testSlot}
	off, err := CreateDiskExtent(filepath.Join(dir, "off"), geo, DiskOptions{Direct: DirectIOOff})
	if err != nil || off.Direct() {
		t.Fatalf("off: %v, direct %v", err, off.Direct())
	}
	off.Close()
	auto, err := CreateDiskExtent(filepath.Join(dir, "auto"), geo, DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer auto.Close()
	t.Logf("O_DIRECT in %s: %v", dir, auto.Direct())
	if DirectIOMode(3).Validate() == nil {
		t.Error("mode 3 is accepted")
	}
}

func TestGeometryFitsItsLimit(t *testing.T) {
	for _, c := range []struct{ limit, slot uint64 }{{8192, 4096}, {1 << 20, 4096}, {1 << 26, 20480}, {1 << 30, 2 << 20}, {1 << 26, 4096}} {
		g, err := HostGeometry(c.limit, c.slot, PageSize)
		if err != nil || g.FileBytes() > c.limit || g.DataOffset < 8*uint64(g.Slots) || g.DataOffset%PageSize != 0 {
			t.Errorf("%+v: %+v, %v", c, g, err)
		}
		if one := HostBytesFor(uint64(g.Slots)+1, c.slot); one <= c.limit {
			t.Errorf("%+v: one more slot would fit %d", c, one)
		}
	}
	if _, err := HostGeometry(4096, 4096, PageSize); err == nil || !strings.Contains(err.Error(), "host extent of 4096 bytes") {
		t.Errorf("too small: %v", err)
	}
}
