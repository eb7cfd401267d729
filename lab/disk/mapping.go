package disk

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// mapping is a pool's host extents as an engine sees them.
type mapping struct {
	extents map[uint32]mappedExtent
}

type mappedExtent struct {
	info blockmgr.ExtentInfo
	mem  []byte
}

func mapPool(p *blockmgr.Pool) (*mapping, error) {
	m := &mapping{map[uint32]mappedExtent{}}
	for _, info := range p.Extents() {
		mem, err := mapFile(info.Path)
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.extents[info.ID] = mappedExtent{info, mem}
	}
	return m, nil
}

// offset is where a slot lies in its extent's file.
func (e *mappedExtent) offset(index uint32) uint64 {
	return e.info.DataOffset + uint64(index)*e.info.SlotBytes
}

// slot is the first n bytes of a slot, or an error when its extent came after
// the mapping was made.
func (m *mapping) slot(s blockmgr.Slot, n uint64) ([]byte, error) {
	e, ok := m.extents[s.Extent]
	if !ok {
		return nil, fmt.Errorf("extent %d: not mapped", s.Extent)
	}
	return e.mem[e.offset(s.Index):][:n], nil
}

func (m *mapping) close() error {
	var errs []error
	for _, e := range m.extents {
		errs = append(errs, unix.Munmap(e.mem))
	}
	return errors.Join(errs...)
}

// mapFile maps a whole file shared, with every page in place.
func mapFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of %s: %w", st.Size(), path, err)
	}
	return mem, nil
}

// mapMemory is private memory of random bytes, aligned to pages, and in huge ones
// where the system has them. The caller unmaps it.
func mapMemory(size uint64) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	// Without huge pages it is memory all the same.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	fillRandom(mem, size)
	return mem, nil
}
