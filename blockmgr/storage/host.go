package storage

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// HostExtent is one file of host memory, mapped shared. Clients map the same
// file; see Geometry for where things lie. Methods on different slots may be
// called concurrently; Close must come after all of them.
type HostExtent struct {
	geo  Geometry
	path string
	file *os.File
	mem  []byte
}

// CreateHostExtent makes the file, reserves its memory and faults every page
// in: a hole in tmpfs would be a SIGBUS in the engine that copies into it. An
// older file of that name is unlinked first, so that whoever still maps it
// keeps the old memory.
func CreateHostExtent(path string, geo Geometry) (*HostExtent, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("host extent: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("host extent: %w", err)
	}
	h := &HostExtent{geo: geo, path: path, file: f}
	if err := h.populate(geo.FileBytes()); err != nil {
		return nil, errors.Join(fmt.Errorf("host extent %s of %d bytes: %w", path, geo.FileBytes(), err), h.Close())
	}
	return h, nil
}

func (h *HostExtent) populate(size uint64) error {
	fd := int(h.file.Fd())
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		return fmt.Errorf("fallocate: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	h.mem = mem
	err = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) {
		// Kernels before 5.14: touch one byte of every page.
		err = Guard(func() {
			for i := 0; i < len(mem); i += PageSize {
				mem[i] = 0
			}
		})
	}
	if err != nil {
		return fmt.Errorf("populate: %w", err)
	}
	return nil
}

// Geometry is how the slots lie in the file.
func (h *HostExtent) Geometry() Geometry { return h.geo }

// Path is the extent's file.
func (h *HostExtent) Path() string { return h.path }

// File is open for reading and writing until Close.
func (h *HostExtent) File() *os.File { return h.file }

// Slot is the whole memory of slot i, padding included. It is shared with the
// engines; touch it under Guard, because they may also truncate the file.
func (h *HostExtent) Slot(i uint32) []byte {
	off := h.geo.Offset(i)
	return h.mem[off : off+int64(h.geo.SlotBytes) : off+int64(h.geo.SlotBytes)]
}

// SetGeneration stores slot i's generation word. Loaders compare it before and
// after their copy, so it must change before the slot can be granted again.
func (h *HostExtent) SetGeneration(i uint32, generation uint64) error {
	if i >= h.geo.Slots {
		return fmt.Errorf("generation of slot %d: want 0 to %d", i, h.geo.Slots-1)
	}
	// The word is aligned: the mapping is, and words are eight bytes. Clients
	// read little-endian, which is what every platform with this code is.
	return Guard(func() {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&h.mem[8*i])), generation)
	})
}

// ContentSum is ContentSum of the first n bytes of slot i, or an error when the
// memory is gone.
func (h *HostExtent) ContentSum(i uint32, key kv.StoredKey, n uint64) (sum uint64, err error) {
	slot := h.Slot(i)[:n]
	err = Guard(func() { sum = ContentSum(key, slot) })
	return sum, err
}

// punch gives the file's memory back to the system, whoever maps it. Reading
// what is gone gives zeros and faults nobody.
func (h *HostExtent) punch() error {
	err := unix.Fallocate(int(h.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(h.geo.FileBytes()))
	if err != nil {
		return fmt.Errorf("give back the memory of %s: %w", h.path, err)
	}
	return nil
}

// Close unmaps, closes and unlinks the file. Engines that still map it keep
// their memory.
func (h *HostExtent) Close() error {
	var errs []error
	if h.mem != nil {
		errs = append(errs, unix.Munmap(h.mem))
		h.mem = nil
	}
	errs = append(errs, h.file.Close())
	if err := os.Remove(h.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// FSInfo is what matters about the file system of a host directory.
type FSInfo struct {
	// InMemory is true for tmpfs and hugetlbfs.
	InMemory bool
	// Unit is what file sizes must be a multiple of: the huge page size on
	// hugetlbfs, a page elsewhere.
	Unit uint64
}

// StatFS looks at the file system that dir is on.
func StatFS(dir string) (FSInfo, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return FSInfo{}, fmt.Errorf("file system of %s: %w", dir, err)
	}
	switch st.Type {
	case unix.TMPFS_MAGIC:
		return FSInfo{InMemory: true, Unit: PageSize}, nil
	case unix.HUGETLBFS_MAGIC:
		return FSInfo{InMemory: true, Unit: max(uint64(st.Bsize), PageSize)}, nil
	}
	return FSInfo{Unit: PageSize}, nil
}
