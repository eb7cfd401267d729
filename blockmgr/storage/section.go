package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// sectionHead is the first page of a section and says whose records follow. It
// is written after them, and it names the extent by its id, so that what an earlier
// extent left at this place is never taken for a later one's.
//
//	magic[8] "BYARDSC1" @0 | extent id u32 @8 | namespace u32 @12 |
//	slots u32 @16 | zero u32 @20 | slot bytes u64 @24 |
//	CRC32C of bytes 0..31 u32 @32 | zero
type sectionHead struct {
	extent    uint32
	namespace uint32
	slots     uint32
	slotBytes uint64
}

const (
	sectionMagic     = "BYARDSC1"
	sectionHeadBytes = 36
)

// bytes is what the extent's slots take.
func (h *sectionHead) bytes() uint64 { return uint64(h.slots) * h.slotBytes }

func (h *sectionHead) encode() []byte {
	b := make([]byte, sectionHeadBytes)
	le := binary.LittleEndian
	copy(b, sectionMagic)
	le.PutUint32(b[8:], h.extent)
	le.PutUint32(b[12:], h.namespace)
	le.PutUint32(b[16:], h.slots)
	le.PutUint64(b[24:], h.slotBytes)
	le.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli()))
	return b
}

func decodeSectionHead(b []byte) (sectionHead, error) {
	le := binary.LittleEndian
	if len(b) < sectionHeadBytes || string(b[:8]) != sectionMagic || le.Uint32(b[32:]) != crc32.Checksum(b[:32], castagnoli()) {
		return sectionHead{}, errors.New("its section of the slot table is damaged")
	}
	return sectionHead{
		extent: le.Uint32(b[8:]), namespace: le.Uint32(b[12:]), slots: le.Uint32(b[16:]), slotBytes: le.Uint64(b[24:]),
	}, nil
}

// Section is the records of one extent: the only place where the description
// of a stored block lives. It is not safe for concurrent use, except for pin
// words; its pool guards it. Pages taken with TakeDirty may be written without
// that guard.
type Section struct {
	table *table
	// index is the section's place in the table.
	index uint32
	head  sectionHead
	// image is the head's page, the records and, in a host table, the pin words and
	// recencies.
	image   []byte
	pins    []uint64
	recency []uint32
	// dirty has a bit for each page of a disk section that changed since TakeDirty,
	// aged one for each page in which SetRecency changed a record since then.
	dirty, aged []uint64
}

// recordBytes is what the records of a number of slots take.
func recordBytes(slots uint32) uint64 { return extent.RoundUp(uint64(slots)*RecordSize, PageSize) }

// sectionBytes is the size of a section of the given number of slots.
func (t *table) sectionBytes(slots uint32) uint64 {
	size := PageSize + recordBytes(slots)
	if t.kind == KindHost {
		size += perSlot(slots, pinBytes) + perSlot(slots, recencyBytes)
	}
	return extent.RoundUp(size, t.unit)
}

// What a slot of a host table has beside its record: close together, because
// every use of a block changes them, and records are far apart.
const (
	// pinBytes is the size of a pin word.
	pinBytes = 8
	// recencyBytes is the size of a recency.
	recencyBytes = 4
)

// perSlot is what one word for each of a number of slots takes.
func perSlot(slots uint32, size uint64) uint64 { return extent.RoundUp(uint64(slots)*size, PageSize) }

// sectionOffset is where section index starts.
func (t *table) sectionOffset(index uint32) int64 {
	return int64(t.headBytes() + uint64(index)*t.sectionBytes(t.stride))
}

// readSectionHead is what section index says of itself.
func (t *table) readSectionHead(index uint32) (sectionHead, error) {
	b := make([]byte, sectionHeadBytes)
	if _, err := t.io.ReadAt(b, t.sectionOffset(index)); err != nil && !errors.Is(err, io.EOF) {
		return sectionHead{}, fmt.Errorf("slot table %s: %w", t.path, err)
	}
	return decodeSectionHead(b)
}

// createSection makes the records of a new extent: all free, at generation 1.
// When it returns they are in the file, whatever was there before, and have
// been synced if it is a disk's.
func (t *table) createSection(index uint32, head sectionHead) (*Section, error) {
	s, err := t.newSection(index, head)
	if err != nil {
		return nil, err
	}
	for i := range head.slots {
		s.Put(i, &Record{Namespace: head.namespace, Generation: 1})
	}
	for i := range s.pins {
		s.SetPins(uint32(i), 0)
	}
	if t.kind == KindDisk {
		if err := s.writeNew(); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	copy(s.image, head.encode())
	return s, nil
}

// writeNew writes the whole of a new disk section. The head goes last: before
// it, this is the section of an extent that no longer exists.
func (s *Section) writeNew() error {
	t, off := s.table, s.table.sectionOffset(s.index)
	for _, part := range []struct {
		data []byte
		off  int64
	}{{s.image[PageSize:], off + PageSize}, {s.head.encode(), off}} {
		_, err := t.io.WriteAt(part.data, part.off)
		if err == nil {
			err = t.io.Sync()
		}
		if err != nil {
			return fmt.Errorf("slot table %s: new section at %d: %w", t.path, off, err)
		}
	}
	clear(s.dirty)
	return nil
}

// openSection takes the records of an earlier agent's extent into use.
func (t *table) openSection(index uint32, head sectionHead) (*Section, error) {
	s, err := t.newSection(index, head)
	if err != nil || t.kind == KindHost {
		return s, err
	}
	// What the file lacks stays zero: damaged records, not an error.
	if _, err := t.io.ReadAt(s.image, t.sectionOffset(index)); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("slot table %s: %w", t.path, err), s.close())
	}
	return s, nil
}

// newSection gets the memory of a section: the file's own for a host table.
func (t *table) newSection(index uint32, head sectionHead) (*Section, error) {
	size := t.sectionBytes(head.slots)
	s := &Section{table: t, index: index, head: head}
	var err error
	if t.kind == KindHost {
		s.image, err = extent.MapShared(t.file, t.sectionOffset(index), size)
	} else {
		s.image, err = unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			// All of it will be filled at once, and read often. Without huge pages it is
			// memory all the same.
			_ = unix.Madvise(s.image, unix.MADV_HUGEPAGE)
		}
		words := (size/PageSize + 63) / 64
		s.dirty, s.aged = make([]uint64, words), make([]uint64, words)
	}
	if err != nil {
		return nil, fmt.Errorf("slot table %s: section of %d bytes: %w", t.path, size, err)
	}
	if t.kind == KindHost {
		words := s.image[PageSize+recordBytes(head.slots):]
		s.pins = extent.Words(words[:pinBytes*head.slots])
		s.recency = unsafe.Slice((*uint32)(unsafe.Pointer(&words[perSlot(head.slots, pinBytes)])), head.slots)
	}
	return s, nil
}

// bytes are those of record i.
func (s *Section) bytes(i uint32) []byte {
	if i >= s.head.slots {
		panic(fmt.Sprintf("BUG: record %d of a section of %d", i, s.head.slots))
	}
	off := PageSize + int(i)*RecordSize
	return s.image[off : off+RecordSize : off+RecordSize]
}

// Slots is the number of records.
func (s *Section) Slots() uint32 { return s.head.slots }

// Put stores the record of slot i. In a host table it is in the file at once; a
// kill in the middle leaves a record that Get finds damaged.
func (s *Section) Put(i uint32, r *Record) {
	AppendRecord(s.bytes(i)[:0], r)
	s.markDirty(recordPage(i))
	if s.recency != nil {
		s.SetRecency(i, r.Recency)
	}
}

// Get is the record of slot i. ErrBadRecord means that nothing is known of the
// slot: a write of its record was cut short, or the table's memory was lost.
func (s *Section) Get(i uint32) (Record, error) {
	r, err := DecodeRecord(s.bytes(i))
	if err == nil && s.recency != nil {
		r.Recency = atomic.LoadUint32(&s.recency[i])
	}
	return r, err
}

// Pins is the pin word of slot i: a bit for each pinned session, as
// SessionTable.Begin assigned it. Only host sections have pin words.
func (s *Section) Pins(i uint32) uint64 { return atomic.LoadUint64(&s.pins[i]) }

// SetPins stores the pin word of slot i: a kill leaves the old one or this one.
func (s *Section) SetPins(i uint32, mask uint64) { atomic.StoreUint64(&s.pins[i], mask) }

func (s *Section) close() error {
	if s.image == nil {
		return nil
	}
	err := unix.Munmap(s.image)
	s.image, s.pins, s.recency = nil, nil, nil
	return err
}
