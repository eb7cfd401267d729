package proto

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxExtents bounds the extents that a client maps: 1 TiB at the largest size, and
// far below the kernel's limit of mappings per process.
const maxExtents = 16384

// extentMap holds a client's mappings by extent id. Slices of a mapping are valid
// until close.
type extentMap struct {
	slotBytes  uint64 // from WELCOME; every extent must agree
	blockBytes uint64

	mu      sync.RWMutex
	extents map[uint32]extent
	closed  bool
}

type extent struct {
	ExtentReady
	mem []byte
}

func newExtentMap(w *Welcome) *extentMap {
	return &extentMap{slotBytes: w.SlotBytes, blockBytes: w.BlockBytes, extents: make(map[uint32]extent)}
}

// add maps one extent (a file of slots) that the agent has announced with r, and closes file,
// which a mapping does not need. It first compares the announced size with the file's real size,
// because a touch of a page behind the end of a file is a SIGBUS.
func (m *extentMap) add(r ExtentReady, file *os.File) error {
	if file == nil {
		return fmt.Errorf("extent %d: no file descriptor came with the frame", r.Extent)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return fmt.Errorf("extent %d: %w", r.Extent, err)
	}
	if st.Size() < 0 || uint64(st.Size()) < r.FileBytes {
		return fmt.Errorf("extent %d: file_bytes: %d, but the file has %d bytes", r.Extent, r.FileBytes, st.Size())
	}
	if r.SlotBytes != m.slotBytes {
		return fmt.Errorf("extent %d: slot_bytes: %d, but the session's is %d", r.Extent, r.SlotBytes, m.slotBytes)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil // the last frames of a connection that is being closed
	}
	if _, ok := m.extents[r.Extent]; ok {
		return fmt.Errorf("extent %d: announced twice", r.Extent)
	}
	if len(m.extents) >= maxExtents {
		return fmt.Errorf("extent %d: more than %d extents", r.Extent, maxExtents)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, int(r.FileBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("extent %d: map %d bytes: %w", r.Extent, r.FileBytes, err)
	}
	m.extents[r.Extent] = extent{ExtentReady: r, mem: mem}
	return nil
}

// find returns the mapped extent of a slot. The error names a slot that is in no mapped extent.
func (m *extentMap) find(s Slot) (extent, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	e, ok := m.extents[s.Extent]
	if !ok {
		return extent{}, fmt.Errorf("slot %d of extent %d: the extent is not mapped", s.Index, s.Extent)
	}
	if s.Index >= e.Slots {
		return extent{}, fmt.Errorf("slot %d of extent %d: the extent has %d slots", s.Index, s.Extent, e.Slots)
	}
	return e, nil
}

// bytes returns the mapped memory of the block in a slot; a slot may be longer than its block.
// The memory is valid until close.
func (m *extentMap) bytes(s Slot) ([]byte, error) {
	e, err := m.find(s)
	if err != nil {
		return nil, err
	}
	off := e.DataOffset + uint64(s.Index)*e.SlotBytes
	return e.mem[off : off+m.blockBytes : off+m.blockBytes], nil
}

// generation returns the slot's current generation, which the agent increases before it uses the
// slot for another block. A reader compares it before and after a copy. The words are at the
// extent's start.
func (m *extentMap) generation(s Slot) (uint64, error) {
	e, err := m.find(s)
	if err != nil {
		return 0, err
	}
	// The words are little-endian, like every platform that the agent runs on.
	// Validate has checked that they lie inside the mapping. Mappings are
	// page-aligned.
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&e.mem[8*uint64(s.Index)]))), nil
}

// close unmaps all extents and makes add ignore later ones. No copy may be in flight.
func (m *extentMap) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	var first error
	for id, e := range m.extents {
		if err := unix.Munmap(e.mem); err != nil && first == nil {
			first = fmt.Errorf("extent %d: unmap: %w", id, err)
		}
		delete(m.extents, id)
	}
	return first
}
