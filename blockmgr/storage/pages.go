package storage

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

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

// offset is where the page lies in the table's file.
func (p *Page) offset() int64 {
	return p.section.table.sectionOffset(p.section.index) + int64(p.index)*PageSize
}

// recordPage is the page of a section in which record i lies.
func recordPage(i uint32) uint32 { return 1 + i*RecordSize/PageSize }

// markDirty notes that a page of a disk section changed; a host section has
// nothing to note.
func (s *Section) markDirty(page uint32) {
	if s.dirty != nil {
		s.dirty[page/64] |= 1 << (page % 64)
	}
}

// TakeDirty appends copies of the pages that changed since the last call, in
// ascending order.
func (s *Section) TakeDirty(to []Page) []Page {
	to, _, _ = s.TakeSomeDirty(to, 0, math.MaxInt)
	return to
}

// TakeSomeDirty is TakeDirty from page from on, a multiple of 64, until to has most
// pages or up to 63 more. more reports whether there may be further ones, from page
// next on.
func (s *Section) TakeSomeDirty(to []Page, from uint32, most int) (_ []Page, next uint32, more bool) {
	for w := int(from / 64); w < len(s.dirty); w++ {
		if len(to) >= most {
			return to, uint32(w) * 64, true
		}
		s.aged[w] &^= s.dirty[w]
		for ; s.dirty[w] != 0; s.dirty[w] &= s.dirty[w] - 1 {
			i := uint32(w*64 + bits.TrailingZeros64(s.dirty[w]))
			to = append(to, Page{section: s, index: i})
			copy(to[len(to)-1].data[:], s.image[int(i)*PageSize:])
		}
	}
	return to, 0, false
}

// DirtyAged makes pages dirty in which only recencies changed, 64 at a time until
// there are at least most, and returns their number. Zero means that there were
// none.
func (s *Section) DirtyAged(most int) (pages int) {
	for w := range s.aged {
		if s.aged[w] == 0 {
			continue
		}
		if pages >= most {
			break
		}
		pages += bits.OnesCount64(s.aged[w])
		s.dirty[w] |= s.aged[w]
		s.aged[w] = 0
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

// Redirty marks pages that could not be written as changed again. Unlike
// WritePages it needs the guard of their pool.
func Redirty(pages []Page) {
	for i := range pages {
		pages[i].section.markDirty(pages[i].index)
	}
}
