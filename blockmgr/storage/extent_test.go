package storage

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

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
	h := openHost(t, hostConfig(dir))
	part := growHost(t, h, nsA)
	geo := part.Extent.Geometry()
	if geo.Slots != 4 || geo.DataOffset != PageSize || geo.FileBytes() != PageSize+4*testSlot {
		t.Errorf("geometry %+v", geo)
	}
	st, err := part.Extent.File().Stat()
	if err != nil {
		t.Fatal(err)
	}
	if blocks := st.Sys().(*syscall.Stat_t).Blocks * statBlockBytes; blocks < int64(geo.FileBytes()) {
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
	if got, err := part.Extent.Generation(3); err != nil || got != 0x0102030405060708 {
		t.Errorf("generation %#x, %v", got, err)
	}
	if err := part.Extent.SetGeneration(4, 1); err == nil {
		t.Error("a generation beyond the extent was set")
	}
	if _, err := part.Extent.Generation(4); err == nil {
		t.Error("a generation beyond the extent was read")
	}
	if err := h.Close([]HostPart{part}, false); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files are left", len(left))
	}
}

func TestTruncatedHostMemoryIsAnErrorNotASignal(t *testing.T) {
	ext, err := CreateHostExtent(filepath.Join(t.TempDir(), "x"), HostGeometry(4, testSlot, PageSize))
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
	if _, err := ext.Generation(1); !errors.Is(err, ErrMemory) {
		t.Errorf("reading a generation in memory that is gone: %v", err)
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

func TestHoleInAnExtentIsFilledWhenItIsOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	geo := HostGeometry(4, testSlot, PageSize)
	ext, err := CreateHostExtent(path, geo)
	if err != nil {
		t.Fatal(err)
	}
	hole := unix.Fallocate(int(ext.File().Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, geo.Offset(1), testSlot)
	if err := errors.Join(ext.Publish(), hole, ext.Close()); err != nil {
		t.Fatal(err)
	}
	if ext, err = OpenHostExtent(path, geo); err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(ext.File().Fd()), &st); err != nil || uint64(st.Blocks)*statBlockBytes < geo.FileBytes() {
		t.Errorf("%d blocks are allocated, %v", st.Blocks, err)
	}
	if _, err := OpenHostExtent(path, HostGeometry(5, testSlot, PageSize)); err == nil {
		t.Error("a file of another size was opened")
	}
}

func TestHostSlotsFitTheirLimitWithTheirWords(t *testing.T) {
	for _, c := range []struct{ limit, slot uint64 }{{4096, 4096}, {8192, 4096}, {1 << 20, 4096}, {1 << 26, 20480}, {1 << 30, 2 << 20}, {1 << 26, 4096}} {
		slots := HostSlots(c.limit, c.slot)
		fits := HostGeometry(uint32(slots), c.slot, PageSize)
		if fits.FileBytes() > c.limit || fits.DataOffset < 8*slots || fits.DataOffset%PageSize != 0 {
			t.Errorf("%+v: %+v", c, fits)
		}
		if more := HostGeometry(uint32(slots)+1, c.slot, PageSize); more.FileBytes() <= c.limit {
			t.Errorf("%+v: one more slot would fit: %+v", c, more)
		}
	}
}
