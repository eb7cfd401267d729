package extent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Host is one file of host memory, mapped shared. Clients map the same file; Geometry has its
// layout. Methods on different slots may be called concurrently; Close comes after all of them.
type Host struct {
	geo  Geometry
	path string
	file *os.File
	mem  []byte
	// small says why the memory has no huge pages; nil when it has.
	small error
}

// UnfinishedSuffix ends the name of a host file until Publish, and again while
// DiscardHost removes it.
const UnfinishedSuffix = ".new"

// CreateHost makes the file, reserves its memory and faults every page in: a hole in
// tmpfs would be a SIGBUS in the engine that copies into it. Until Publish the file
// has a temporary name, under which no file may exist.
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

// OpenHost maps a file that CreateHost made earlier. A file of another size is
// refused. Holes, which such a file should not have, are filled.
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

// remap maps the file of an earlier agent, after a check of its size. It allocates and faults in
// the memory of a file with holes.
func (h *Host) remap() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(h.file.Fd()), &st); err != nil {
		return err
	}
	size := h.geo.FileBytes()
	if uint64(st.Size) != size {
		return fmt.Errorf("%d bytes, want %d", st.Size, size)
	}
	var err error
	if uint64(st.Blocks)*statBlock >= size {
		// Fully allocated. Touching every page again would take seconds for a large pool.
		h.mem, err = unix.Mmap(int(h.file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	}
	if h.mem, err = MapShared(h.file, 0, size); err != nil {
		return err
	}
	return populate(h.mem)
}

// Geometry returns the layout of the slots in the file.
func (h *Host) Geometry() Geometry { return h.geo }

// SmallPages says why the memory has no huge pages; nil when it has.
func (h *Host) SmallPages() error { return h.small }

// Path returns the extent's file.
func (h *Host) Path() string { return h.path }

// File is open for reading and writing until Close.
func (h *Host) File() *os.File { return h.file }

// Slot returns the whole memory of slot i, padding included. It is shared with the engines,
// which may also truncate the file: touch it under Guard.
func (h *Host) Slot(i uint32) []byte {
	off := h.geo.Offset(i)
	return h.mem[off : off+int64(h.geo.SlotBytes) : off+int64(h.geo.SlotBytes)]
}

// SetGeneration stores slot i's generation word. Loaders compare it before and after
// their copy, so it must change before the slot can be granted again.
func (h *Host) SetGeneration(i uint32, generation uint64) error {
	word, err := h.generation(i)
	if err != nil {
		return err
	}
	return Guard(func() { atomic.StoreUint64(word, generation) })
}

// Generation is slot i's generation word, as clients see it. Clients can write the
// word; the slot table has the generation that counts.
func (h *Host) Generation(i uint32) (generation uint64, err error) {
	word, err := h.generation(i)
	if err != nil {
		return 0, err
	}
	err = Guard(func() { generation = atomic.LoadUint64(word) })
	return generation, err
}

// generation returns the generation word of slot i in the mapped file; see Guard.
func (h *Host) generation(i uint32) (*uint64, error) {
	if i >= h.geo.Slots {
		return nil, fmt.Errorf("generation of slot %d: want 0 to %d", i, h.geo.Slots-1)
	}
	return &Words(h.mem[:h.geo.DataOffset])[i], nil
}

// ContentSum is ContentSum of the first n bytes of slot i, or ErrMemory.
func (h *Host) ContentSum(i uint32, key kv.StoredKey, n uint64) (sum uint64, err error) {
	slot := h.Slot(i)[:n]
	err = Guard(func() { sum = ContentSum(key, slot) })
	return sum, err
}

// ContentSum returns the XXH3-64 of a block's bytes, seeded with the block's key: equal
// bytes under another identity have another sum. It is computed once, after COMMIT, and
// travels with the block from then on.
func ContentSum(key kv.StoredKey, data []byte) uint64 {
	return xxh3.HashSeed(data, xxh3.Hash(key[:]))
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

// DiscardHost removes the file of a host extent, which may be gone already, and gives
// its memory back to the system, whoever maps it. A client that still reads the memory
// gets zeros and no fault. The file is renamed first: under its own name it never has
// holes. DiscardHost can be repeated after an error.
func DiscardHost(path string) error {
	unfinished := path + UnfinishedSuffix
	if err := os.Rename(path, unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(unfinished, os.O_RDWR, 0)
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
	// Where there are no holes, a client that maps the file keeps the memory.
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("give back the memory of %s: %w", path, err)
	}
	return os.Remove(unfinished)
}
