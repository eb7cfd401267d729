package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Section is the records of one extent: the only description of its stored blocks.
// It is not safe for concurrent use, except for pin words; its pool guards it. Pages
// taken with TakeDirty may be written without that guard.
type Section struct {
	table *table
	// index is the section's number in the table.
	index uint32
	head  sectionHead
	// image is the page of the head, the records and, in a host table, the pin words
	// and recencies. In a host table it is the mapped file.
	image   []byte
	pins    []uint64
	recency []uint32
	// dirtyPages has a bit for each page of a disk section that changed since TakeDirty.
	// agedPages has one for each page in which only SetRecency changed a record.
	dirtyPages, agedPages []uint64
}

// What a slot of a host table has outside its record: close together, because every
// use of a block changes them, and records are far apart.
const (
	// pinBytes is the size of a pin word.
	pinBytes = 8
	// recencyBytes is the size of a recency.
	recencyBytes = 4
)

// recordBytes is what the records of a number of slots take.
func recordBytes(slots uint32) uint64 { return extent.RoundUp(uint64(slots)*RecordSize, PageSize) }

// perSlot is what one value of size bytes for each of a number of slots takes.
func perSlot(slots uint32, size uint64) uint64 { return extent.RoundUp(uint64(slots)*size, PageSize) }

// strideOf returns how many records an extent of extentBytes has room for in the table: as
// many as the extent has pages.
func strideOf(extentBytes uint64) uint32 {
	return uint32(extent.RoundUp(max(extentBytes/PageSize, 64), PageSize/RecordSize))
}

// sectionBytes returns the size of a section of a number of slots.
func (t *table) sectionBytes(slots uint32) uint64 {
	size := PageSize + recordBytes(slots)
	if t.kind == kindHost {
		size += perSlot(slots, pinBytes) + perSlot(slots, recencyBytes)
	}
	return extent.RoundUp(size, t.unit)
}

// sectionOffset returns where a section starts in the file.
func (t *table) sectionOffset(index uint32) int64 {
	return int64(t.headBytes() + uint64(index)*t.sectionBytes(t.stride))
}

// readSectionHead reads the head of a section.
func (t *table) readSectionHead(index uint32) (sectionHead, error) {
	b := make([]byte, sectionHeadBytes)
	if _, err := t.io.ReadAt(b, t.sectionOffset(index)); err != nil && !errors.Is(err, io.EOF) {
		return sectionHead{}, fmt.Errorf("slot table %s: %w", t.path, err)
	}
	return decodeSectionHead(b)
}

// createSection makes section index for a new extent. All of its slots are free, at generation 1,
// and unpinned. On return the records are in the file, whatever was there before. A disk table is
// synced.
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
	if t.kind == kindDisk {
		if err := s.writeNew(); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	copy(s.image, head.encode()) // the head comes last: it makes the records valid
	return s, nil
}

// writeNew writes a new disk section: first the records, then the head, with a sync after
// each. After a crash in between, the file still has the section's previous head. Its
// extent no longer exists, so a later agent does not take the section over.
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
	clear(s.dirtyPages)
	return nil
}

// openSection reads or maps the records of an earlier agent's extent.
func (t *table) openSection(index uint32, head sectionHead) (*Section, error) {
	s, err := t.newSection(index, head)
	if err != nil || t.kind == kindHost {
		return s, err
	}
	// What the file lacks stays zero: damaged records, not an error.
	if _, err := t.io.ReadAt(s.image, t.sectionOffset(index)); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("slot table %s: %w", t.path, err), s.close())
	}
	return s, nil
}

// newSection returns a section whose records are not read or written yet. The memory of a host
// section is the mapped file, that of a disk section is private to the agent.
func (t *table) newSection(index uint32, head sectionHead) (*Section, error) {
	size := t.sectionBytes(head.slots)
	s := &Section{table: t, index: index, head: head}
	var err error
	if t.kind == kindHost {
		s.image, err = extent.MapShared(t.file, t.sectionOffset(index), size)
	} else {
		s.image, err = unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			// All of it is filled at once and read often. Huge pages are not required.
			_ = unix.Madvise(s.image, unix.MADV_HUGEPAGE)
		}
		words := (size/PageSize + 63) / 64
		s.dirtyPages, s.agedPages = make([]uint64, words), make([]uint64, words)
	}
	if err != nil {
		return nil, fmt.Errorf("slot table %s: section of %d bytes: %w", t.path, size, err)
	}
	if t.kind == kindHost { // behind the records: all pin words, then all recencies
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

// Slots returns the number of records.
func (s *Section) Slots() uint32 { return s.head.slots }

// Put stores the record of slot i. In a host table the record is in the file at once;
// a kill in the middle leaves a record that Get finds damaged.
func (s *Section) Put(i uint32, r *Record) {
	AppendRecord(s.bytes(i)[:0], r)
	s.markDirty(recordPage(i))
	if s.recency != nil {
		s.SetRecency(i, r.Recency)
	}
}

// Get returns the record of slot i. ErrBadRecord means that nothing is known of the
// slot: a write of its record was cut short, or the table's memory was lost.
func (s *Section) Get(i uint32) (Record, error) {
	r, err := DecodeRecord(s.bytes(i))
	if err == nil && s.recency != nil {
		r.Recency = atomic.LoadUint32(&s.recency[i])
	}
	return r, err
}

// Position returns the position in the record of slot i. The record must be good.
func (s *Section) Position(i uint32) uint32 {
	return binary.LittleEndian.Uint32(s.bytes(i)[positionOffset:])
}

// Seq returns the SequenceHash in the record of slot i. The record must be good.
func (s *Section) Seq(i uint32) kv.SequenceHash {
	return kv.SequenceHash(binary.LittleEndian.Uint64(s.bytes(i)[seqOffset:]))
}

// SetRecency changes the recency of slot i and nothing else. A host table keeps the
// recency outside the record. A disk record holds the recency, which its CRC leaves
// out. It is written with the next change of its page, or after DirtyAged.
func (s *Section) SetRecency(i, recency uint32) {
	if s.recency != nil {
		atomic.StoreUint32(&s.recency[i], recency)
		return
	}
	// Aligned: the image is, records are 128 bytes and the field is at 96.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.bytes(i)[recencyOffset])), recency)
	page := recordPage(i)
	s.agedPages[page/64] |= 1 << (page % 64)
}

// Pins returns the pin word of slot i: a bit for each pinned session, as
// SessionTable.Begin assigned it. Only host sections have pin words.
func (s *Section) Pins(i uint32) uint64 { return atomic.LoadUint64(&s.pins[i]) }

// SetPins stores the pin word of slot i. A kill leaves the old word or the new one.
func (s *Section) SetPins(i uint32, mask uint64) { atomic.StoreUint64(&s.pins[i], mask) }

// close unmaps the records. A second call does nothing.
func (s *Section) close() error {
	if s.image == nil {
		return nil
	}
	err := unix.Munmap(s.image)
	s.image, s.pins, s.recency = nil, nil, nil
	return err
}

// mergedPages bounds one write of WritePages.
const mergedPages = 64

// Page is the content of one page of a slot table at one moment.
type Page struct {
	section *Section
	index   uint32
	data    [PageSize]byte
}

// follows reports whether p lies right behind q in the table.
func (p *Page) follows(q *Page) bool { return p.section == q.section && p.index == q.index+1 }

// offset returns where the page lies in the table's file.
func (p *Page) offset() int64 {
	return p.section.table.sectionOffset(p.section.index) + int64(p.index)*PageSize
}

// recordPage returns the page of a section in which record i lies.
func recordPage(i uint32) uint32 { return 1 + i*RecordSize/PageSize }

// markDirty notes that a page of a disk section changed. A host section is mapped.
func (s *Section) markDirty(page uint32) {
	if s.dirtyPages != nil {
		s.dirtyPages[page/64] |= 1 << (page % 64)
	}
}

// TakeDirty appends copies of the pages that changed since the last call, in
// ascending order.
func (s *Section) TakeDirty(to []Page) []Page {
	to, _, _ = s.TakeSomeDirty(to, 0, math.MaxInt)
	return to
}

// TakeSomeDirty appends copies of the pages that have changed, from page from on, a multiple of 64.
// The pages count as unchanged then. It stops when to has most pages, or up to 63 more because it
// takes the pages of a bitmap word together. more reports whether there may be further changed
// pages, from page next on.
func (s *Section) TakeSomeDirty(to []Page, from uint32, most int) (_ []Page, next uint32, more bool) {
	for w := int(from / 64); w < len(s.dirtyPages); w++ {
		if len(to) >= most {
			return to, uint32(w) * 64, true
		}
		s.agedPages[w] &^= s.dirtyPages[w]
		for ; s.dirtyPages[w] != 0; s.dirtyPages[w] &= s.dirtyPages[w] - 1 {
			i := uint32(w*64 + bits.TrailingZeros64(s.dirtyPages[w]))
			to = append(to, Page{section: s, index: i})
			copy(to[len(to)-1].data[:], s.image[int(i)*PageSize:])
		}
	}
	return to, 0, false
}

// DirtyAged makes pages dirty in which only recencies changed, 64 at a time until
// there are at least most. It returns their number; zero means that there were none.
func (s *Section) DirtyAged(most int) (pages int) {
	for w := range s.agedPages {
		if s.agedPages[w] == 0 {
			continue
		}
		if pages >= most {
			break
		}
		pages += bits.OnesCount64(s.agedPages[w])
		s.dirtyPages[w] |= s.agedPages[w]
		s.agedPages[w] = 0
	}
	return pages
}

// WritePages writes pages to their tables, neighbours in one write. It goes on
// after an error, so that one bad page does not lose the others.
func WritePages(pages []Page) error {
	var errs []error
	var merged []byte
	for len(pages) > 0 {
		n := 1
		for n < min(len(pages), mergedPages) && pages[n].follows(&pages[n-1]) {
			n++
		}
		data := pages[0].data[:]
		if n > 1 {
			if merged == nil {
				merged = make([]byte, 0, mergedPages*PageSize)
			}
			merged = merged[:0]
			for i := range pages[:n] {
				merged = append(merged, pages[i].data[:]...)
			}
			data = merged
		}
		t, off := pages[0].section.table, pages[0].offset()
		if _, err := t.io.WriteAt(data, off); err != nil {
			errs = append(errs, fmt.Errorf("slot table %s: %d pages at %d: %w", t.path, n, off, err))
		}
		pages = pages[n:]
	}
	return errors.Join(errs...)
}

// Redirty marks pages that could not be written as changed again. The caller holds
// the guard of their pool, which WritePages does not need.
func Redirty(pages []Page) {
	for i := range pages {
		pages[i].section.markDirty(pages[i].index)
	}
}
