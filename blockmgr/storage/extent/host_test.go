package extent

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestTruncatedHostMemoryIsAnErrorNotASignal(t *testing.T) {
	ext, err := CreateHost(filepath.Join(t.TempDir(), "x"), HostGeometry(4, testSlot, PageSize))
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
	disk, err := CreateDisk(filepath.Join(t.TempDir(), "d"), Geometry{Slots: 1, SlotBytes: testSlot}, DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := disk.ReadSlot(0, ext.Slot(1), Life{}); !errors.Is(err, ErrMemory) {
		t.Errorf("a read into memory that is gone: %v", err)
	}
	if err := disk.WriteSlot(0, ext.Slot(1), Life{}); !errors.Is(err, ErrMemory) {
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
	ext, err := CreateHost(path, geo)
	if err != nil {
		t.Fatal(err)
	}
	hole := unix.Fallocate(int(ext.File().Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, geo.Offset(1), testSlot)
	if err := errors.Join(ext.Publish(), hole, ext.Close()); err != nil {
		t.Fatal(err)
	}
	if ext, err = OpenHost(path, geo); err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(ext.File().Fd()), &st); err != nil || uint64(st.Blocks)*statBlock < geo.FileBytes() {
		t.Errorf("%d blocks are allocated, %v", st.Blocks, err)
	}
	if _, err := OpenHost(path, HostGeometry(5, testSlot, PageSize)); err == nil {
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
