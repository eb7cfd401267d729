package extent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Host is one file of host memory, mapped shared. Clients map the same
// file; see Geometry for where things lie. Methods on different slots may be
// called concurrently; Close must come after all of them.
type Host struct {
	geo  Geometry
	path string
	file *os.File
	mem  []byte
	// small is why the file has no huge pages; nil when it has.
	small error
}

// CreateHost makes the file, reserves its memory and faults every page
// in: a hole in tmpfs would be a SIGBUS in the engine that copies into it. Until
// Publish the file has a temporary name, under which there must be none yet.
func CreateHost(path string, geo Geometry) (*Host, error) {
	path += UnfinishedSuffix
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("host extent: %w", err)
	}
	h := &Host{geo: geo, path: path, file: f}
	if geo.FileUnit <= PageSize { // hugetlbfs has nothing else
		h.small = makeHuge(f, geo.FileBytes())
	}
	if h.mem, err = MapShared(f, 0, geo.FileBytes()); err == nil {
		err = populate(h.mem)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("host extent %s of %d bytes: %w", path, geo.FileBytes(), err), h.Close(), os.Remove(path))
	}
	return h, nil
}

// Publish gives a new extent the name that CreateHost was called with.
func (h *Host) Publish() error {
	path := strings.TrimSuffix(h.path, UnfinishedSuffix)
	if err := os.Rename(h.path, path); err != nil {
		return fmt.Errorf("host extent: %w", err)
	}
	h.path = path
	return nil
}

// OpenHost maps a file that CreateHost made earlier. A file of
// another size is refused, and holes, which such a file should not have, are
// filled.
func OpenHost(path string, geo Geometry) (*Host, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("host extent: %w", err)
	}
	h := &Host{geo: geo, path: path, file: f}
	if err := h.remap(); err != nil {
		return nil, errors.Join(fmt.Errorf("host extent %s: %w", path, err), h.Close())
	}
	return h, nil
}

func (h *Host) remap() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(h.file.Fd()), &st); err != nil {
		return err
	}
	size := h.geo.FileBytes()
	if uint64(st.Size) != size {
		return fmt.Errorf("%d bytes, want %d", st.Size, size)
	}
	whole := uint64(st.Blocks)*statBlockBytes >= size
	var err error
	if whole {
		// Looking at every page again would take seconds for a large pool.
		h.mem, err = unix.Mmap(int(h.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	}
	if h.mem, err = MapShared(h.file, 0, size); err != nil {
		return err
	}
	return populate(h.mem)
}

// statBlockBytes is the unit in which stat counts what a file has allocated.
const statBlockBytes = 512

// MapShared allocates a piece of a file and maps it, shared, for reading and
// writing. It is not necessarily faulted in.
func MapShared(f *os.File, off int64, size uint64) ([]byte, error) {
	fd := int(f.Fd())
	if err := retryInterrupted(func() error { return unix.Fallocate(fd, 0, off, int64(size)) }); err != nil {
		return nil, fmt.Errorf("fallocate: %w", err)
	}
	mem, err := unix.Mmap(fd, off, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return mem, nil
}

// populate faults mapped memory in for writing.
func populate(mem []byte) error {
	err := retryInterrupted(func() error { return unix.Madvise(mem, unix.MADV_POPULATE_WRITE) })
	if errors.Is(err, unix.EINVAL) {
		// Kernels before 5.14: touch one byte of every page.
		err = Guard(func() {
			for i := 0; i < len(mem); i += PageSize {
				atomic.AddUint64((*uint64)(unsafe.Pointer(&mem[i])), 0)
			}
		})
	}
	if err != nil {
		return fmt.Errorf("populate: %w", err)
	}
	return nil
}

// retryInterrupted calls again what a signal interrupted, such as a profiler's;
// tmpfs undoes an interrupted allocation.
func retryInterrupted(call func() error) error {
	const tries = 100
	var err error
	for range tries {
		if err = call(); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// Words is mapped memory as words. They are little-endian to whoever reads the
// file, which is what every platform with this code is.
func Words(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}

// Geometry is how the slots lie in the file.
func (h *Host) Geometry() Geometry { return h.geo }

// SmallPages says why the memory has no huge pages; nil when it has.
func (h *Host) SmallPages() error { return h.small }

// Path is the extent's file.
func (h *Host) Path() string { return h.path }

// File is open for reading and writing until Close.
func (h *Host) File() *os.File { return h.file }

// Slot is the whole memory of slot i, padding included. It is shared with the
// engines; touch it under Guard, because they may also truncate the file.
func (h *Host) Slot(i uint32) []byte {
	off := h.geo.Offset(i)
	return h.mem[off : off+int64(h.geo.SlotBytes) : off+int64(h.geo.SlotBytes)]
}

// SetGeneration stores slot i's generation word. Loaders compare it before and
// after their copy, so it must change before the slot can be granted again.
func (h *Host) SetGeneration(i uint32, generation uint64) error {
	word, err := h.generation(i)
	if err != nil {
		return err
	}
	return Guard(func() { atomic.StoreUint64(word, generation) })
}

// Generation is slot i's generation word, as clients see it: the memory is
// shared with them, and what the slot table says is the truth.
func (h *Host) Generation(i uint32) (generation uint64, err error) {
	word, err := h.generation(i)
	if err != nil {
		return 0, err
	}
	err = Guard(func() { generation = atomic.LoadUint64(word) })
	return generation, err
}

func (h *Host) generation(i uint32) (*uint64, error) {
	if i >= h.geo.Slots {
		return nil, fmt.Errorf("generation of slot %d: want 0 to %d", i, h.geo.Slots-1)
	}
	return &Words(h.mem[:h.geo.DataOffset])[i], nil
}

// ContentSum is ContentSum of the first n bytes of slot i, or an error when the
// memory is gone.
func (h *Host) ContentSum(i uint32, key kv.StoredKey, n uint64) (sum uint64, err error) {
	slot := h.Slot(i)[:n]
	err = Guard(func() { sum = ContentSum(key, slot) })
	return sum, err
}

// Close unmaps and closes the file and leaves it where it is.
func (h *Host) Close() error {
	var err error
	if h.mem != nil {
		err = unix.Munmap(h.mem)
		h.mem = nil
	}
	return errors.Join(err, h.file.Close())
}

// UnfinishedSuffix ends the name of a file until Publish, and again while it goes.
const UnfinishedSuffix = ".new"

// DiscardHost gives the memory of a host extent back to the system, whoever
// maps it, and removes its file, which may be gone already. Reading what is gone
// gives zeros and faults nobody. The name goes first, so that under it there is
// never a file with holes; under the other one a try that failed is made again.
func DiscardHost(path string) error {
	leaving := path + UnfinishedSuffix
	if err := os.Rename(path, leaving); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(leaving, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	err = retryInterrupted(func() error { return unix.Fallocate(int(f.Fd()), mode, 0, st.Size()) })
	// Where there are no holes, whoever still maps the file keeps its memory.
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("give back the memory of %s: %w", path, err)
	}
	return os.Remove(leaving)
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
