package extent

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const testSlot = 2 * PageSize

var testGeometry = Geometry{Slots: 4, SlotBytes: testSlot}

// newExtent makes a disk extent of testGeometry that is closed at the end.
func newExtent(t *testing.T, o DiskOptions) *Disk {
	t.Helper()
	ext, err := CreateDisk(filepath.Join(t.TempDir(), "x"), testGeometry, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ext.Close() })
	return ext
}

func TestSlotsAndBuffersOutOfRangeAreRefused(t *testing.T) {
	ext := newExtent(t, DiskOptions{})
	p := AlignedBytes(testSlot)
	if err := ext.ReadSlot(4, p, Life{}); err == nil || !strings.Contains(err.Error(), "want 0 to 3") {
		t.Errorf("slot 4 of 4: %v", err)
	}
	if err := ext.WriteSlot(0, p[:PageSize], Life{}); err == nil || !strings.Contains(err.Error(), "want 8192") {
		t.Errorf("half a slot: %v", err)
	}
}

func TestSlotsSurviveSyncAndReopen(t *testing.T) {
	ext := newExtent(t, DiskOptions{})
	want := AlignedBytes(testSlot)
	copy(want, "block")
	if err := errors.Join(ext.WriteSlot(3, want, Life{}), ext.Sync(), ext.Close()); err != nil {
		t.Fatal(err)
	}
	again, err := OpenDisk(ext.Path(), testGeometry, DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	got := AlignedBytes(testSlot)
	if err := again.ReadSlot(3, got, Life{}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("bytes differ after reopening, %v", err)
	}
	if again.Sparse() && !ext.Sparse() {
		t.Error("a reserved extent is called sparse once it is opened again")
	}
	if _, err := OpenDisk(ext.Path(), Geometry{Slots: 3, SlotBytes: testSlot}, DiskOptions{}); err == nil {
		t.Error("an extent of another size was opened")
	}
}

// fullDisk is a File without room.
type fullDisk struct{ File }

func (fullDisk) Allocate(int64) error { return unix.ENOSPC }

func TestFullDiskNamesPathAndSizeAndLeavesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	_, err := CreateDisk(path, testGeometry, DiskOptions{Wrap: func(at string, f File) File {
		if at != path {
			t.Errorf("wrapped %s", at)
		}
		return fullDisk{f}
	}})
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "32768 bytes") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

// Where fallocate does not work, the file gets its exact size with a hole, or
// with zeros that take the space.
func TestAllocationWithoutFallocate(t *testing.T) {
	for _, size := range []int64{1, PageSize, 5*PageSize + 100, zeroFillBytes + PageSize + 1} {
		for _, direct := range []bool{false, true} {
			f, refusal, err := openExtentFile(filepath.Join(t.TempDir(), "x"), os.O_RDWR|os.O_CREATE, DiskOptions{Direct: map[bool]DirectIOMode{true: DirectIOAuto, false: DirectIOOff}[direct]})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			filled := &osFile{f: f, zeroFill: true}
			if err := filled.allocateUnreserved(size); err != nil {
				t.Fatalf("size %d, direct %v %q: %v", size, direct, refusal, err)
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size != size || filled.sparse || filled.zeros < uint64(size) {
				t.Errorf("zero-filled %d bytes: size %d, %d counted, sparse %v, %v", size, st.Size, filled.zeros, filled.sparse, err)
			}
			if _, err := io.Copy(zeroChecker{t}, io.NewSectionReader(f, 0, size&^(PageSize-1))); err != nil {
				t.Error(err)
			}
		}
		f, err := os.Create(filepath.Join(t.TempDir(), "hole"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		hole := &osFile{f: f}
		if err := hole.allocateUnreserved(size); err != nil {
			t.Fatal(err)
		}
		if st, err := f.Stat(); err != nil || st.Size() != size || !hole.sparse {
			t.Errorf("a hole of %d bytes: size %d, sparse %v, %v", size, st.Size(), hole.sparse, err)
		}
	}
}

// zeroChecker reports anything written to it that is not zero. Its reader side
// uses page-aligned memory, which io.Copy's own buffer may not be.
type zeroChecker struct{ t *testing.T }

func (z zeroChecker) Write(p []byte) (int, error) {
	if len(bytes.Trim(p, "\x00")) != 0 {
		z.t.Error("not zero")
	}
	return len(p), nil
}

func (z zeroChecker) ReadFrom(r io.Reader) (n int64, err error) {
	p := AlignedBytes(1 << 20)
	for {
		got, err := r.Read(p)
		_, _ = z.Write(p[:got])
		n += int64(got)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func TestReopenedHoleIsCalledSparse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(testGeometry.FileBytes())); err != nil {
		t.Fatal(err)
	}
	ext, err := OpenDisk(path, testGeometry, DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	if !ext.Sparse() {
		t.Error("a hole is called reserved")
	}
}
