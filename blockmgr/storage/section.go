package storage

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Section is the records of one extent: the only place where the description
// of a stored block lives. It is not safe for concurrent use; its pool guards
// it. Pages taken with TakeDirty may be written without that guard.
type Section struct {
	table  *table
	extent uint32
	slots  uint32
	image  []byte
	// dirty are the pages of a disk section that changed since TakeDirty.
	dirty map[uint32]struct{}
}

// Page is the content of one page of a slot table at one moment.
type Page struct {
	section *Section
	index   uint32
	data    [PageSize]byte
}

func (s *Section) bytes(i uint32) []byte {
	if i >= s.slots {
		panic(fmt.Sprintf("BUG: record %d of a section of %d", i, s.slots))
	}
	off := int(i) * RecordSize
	return s.image[off : off+RecordSize : off+RecordSize]
}

// Slots is the number of records.
func (s *Section) Slots() uint32 { return s.slots }

// Put stores the record of slot i.
func (s *Section) Put(i uint32, r *Record) {
	AppendRecord(s.bytes(i)[:0], r)
	if s.table.header.kind == KindDisk {
		s.dirty[i*RecordSize/PageSize] = struct{}{}
	}
}

// Get is the record of slot i, or ErrBadRecord.
func (s *Section) Get(i uint32) (Record, error) { return DecodeRecord(s.bytes(i)) }

// Namespace is the index of the namespace that the section's first good record
// names; ok is false when there is none.
func (s *Section) Namespace() (ns uint32, ok bool) {
	for i := range s.slots {
		if r, err := s.Get(i); err == nil {
			return r.Namespace, true
		}
	}
	return 0, false
}

// TakeDirty appends copies of the pages that changed since the last call.
func (s *Section) TakeDirty(to []Page) []Page {
	for i := range s.dirty {
		p := Page{section: s, index: i}
		copy(p.data[:], s.image[int(i)*PageSize:])
		to = append(to, p)
	}
	clear(s.dirty)
	return to
}

// WritePages writes pages to their tables. It goes on after an error, so that
// one bad page does not lose the others.
func WritePages(pages []Page) error {
	var errs []error
	for i := range pages {
		p := &pages[i]
		t := p.section.table
		off := t.sectionOffset(p.section.extent) + int64(p.index)*PageSize
		if _, err := t.io.WriteAt(p.data[:], off); err != nil {
			errs = append(errs, fmt.Errorf("slot table %s: page at %d: %w", t.path, off, err))
		}
	}
	return errors.Join(errs...)
}

// Redirty marks pages that could not be written as changed again. Unlike
// WritePages it needs the guard of their pool.
func Redirty(pages []Page) {
	for i := range pages {
		pages[i].section.dirty[pages[i].index] = struct{}{}
	}
}

func (s *Section) close() error {
	if s.image == nil {
		return nil
	}
	err := unix.Munmap(s.image)
	s.image = nil
	return err
}
