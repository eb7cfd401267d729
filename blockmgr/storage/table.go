package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// table is the slot table of one arena: a header page, then a section of
// records for each extent. Its file is locked for as long as it is open.
//
// A host table is mapped: a record is on tmpfs as soon as it is put. A disk
// table is an image in memory whose changed pages are written in batches.
type table struct {
	path string
	file *os.File
	// io is file, with whatever a test put in front of it.
	io   File
	unit uint64

	mu     sync.Mutex
	header header
}

// openTable opens or makes the slot table at path and locks it. reused tells
// whether its records still mean something; when it is false, why says what was
// wrong with the table that was there, nil if there was none.
func openTable(path string, want header, unit uint64, wrap func(File) File) (t *table, reused bool, why error, err error) {
	f, err := openLocked(path)
	if err != nil {
		return nil, false, nil, err
	}
	t = &table{path: path, file: f, io: wrap(osFile{f}), unit: unit, header: want}
	page := make([]byte, headerSize)
	n := 0
	if unit == PageSize {
		// Elsewhere, on hugetlbfs, the header is never written; see reset.
		n, err = f.ReadAt(page, 0)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, nil, errors.Join(fmt.Errorf("slot table %s: %w", path, err), f.Close())
	}
	if n > 0 {
		var old header
		if old, why = decodeHeader(page[:n]); why == nil {
			why = old.fits(&want)
		}
		switch {
		case why == nil && want.kind == KindDisk:
			t.header = old
			return t, true, nil, nil
		case why != nil && !errors.Is(why, errStale):
			return nil, false, nil, errors.Join(fmt.Errorf("slot table %s: %w", path, why), f.Close())
		}
	}
	if err := t.reset(); err != nil {
		return nil, false, nil, errors.Join(err, f.Close())
	}
	return t, false, why, nil
}

// openLocked opens path and takes its lock. The previous owner of a host table
// unlinks it, so the file that was locked must still be the one at path.
func openLocked(path string) (*os.File, error) {
	for range 10 {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("slot table: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				err = ErrLocked
			}
			return nil, fmt.Errorf("slot table %s: %w", path, err)
		}
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return f, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("slot table %s: replaced again and again: %w", path, ErrLocked)
}

// reset makes the table empty, with the header it has.
func (t *table) reset() error {
	if err := t.file.Truncate(0); err != nil {
		return fmt.Errorf("slot table: %w", err)
	}
	// hugetlbfs takes no writes; nothing ever reads a host header back there.
	if t.unit > PageSize {
		return nil
	}
	return t.writeHeader()
}

func (t *table) writeHeader() error {
	if _, err := t.io.WriteAt(t.header.encode(), 0); err != nil {
		return fmt.Errorf("slot table %s: header: %w", t.path, err)
	}
	return nil
}

// namespace is the index of id in the directory, where it is entered when new.
// inUse names the indices that must not be given to another namespace.
func (t *table) namespace(id kv.NamespaceID, slotBytes uint64, inUse func(uint32) bool) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	item := directoryItem{id, slotBytes}
	dir := t.header.directory
	i := slices.IndexFunc(dir, func(d directoryItem) bool { return d.id == id })
	if i >= 0 && dir[i].slotBytes == slotBytes {
		return uint32(i), nil
	}
	if i >= 0 {
		return 0, fmt.Errorf("namespace %s: slots of %d bytes, but %s has some of %d", id, slotBytes, t.path, dir[i].slotBytes)
	}
	next := slices.Clone(dir)
	if i = len(dir); i < MaxNamespaces {
		next = append(next, item)
	} else {
		for i = 0; i < len(dir) && inUse(uint32(i)); i++ {
		}
		if i == len(dir) {
			return 0, fmt.Errorf("namespace %s: %s holds %d namespaces already, the most it can", id, t.path, MaxNamespaces)
		}
		next[i] = item
	}
	t.header.directory = next
	if t.unit > PageSize {
		return uint32(i), nil
	}
	if err := t.writeHeader(); err != nil {
		t.header.directory = dir
		return 0, err
	}
	return uint32(i), nil
}

// item is the directory entry of index i; ok is false when there is none.
func (t *table) item(i uint32) (item directoryItem, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(i) >= len(t.header.directory) {
		return directoryItem{}, false
	}
	return t.header.directory[i], true
}

func (t *table) sectionOffset(extent uint32) int64 {
	return int64(t.unit + uint64(extent)*uint64(t.header.stride)*RecordSize)
}

// section opens the records of one extent. A fresh section is all free, at
// generation 1, and belongs to namespace ns.
func (t *table) section(extent, ns, slots uint32, fresh bool) (*Section, error) {
	size := int(roundUp(uint64(slots)*RecordSize, t.unit))
	off := t.sectionOffset(extent)
	s := &Section{table: t, extent: extent, slots: slots, dirty: map[uint32]struct{}{}}
	var err error
	if t.header.kind == KindHost {
		if err := unix.Fallocate(int(t.file.Fd()), 0, off, int64(size)); err != nil {
			return nil, fmt.Errorf("slot table %s: fallocate: %w", t.path, err)
		}
		s.image, err = unix.Mmap(int(t.file.Fd()), off, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	} else {
		s.image, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	}
	if err != nil {
		return nil, fmt.Errorf("slot table %s: mmap: %w", t.path, err)
	}
	if !fresh {
		if _, err := t.io.ReadAt(s.image, off); err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(fmt.Errorf("slot table %s: %w", t.path, err), s.close())
		}
		return s, nil
	}
	for i := range slots {
		s.Put(i, &Record{Namespace: ns, Generation: 1})
	}
	return s, nil
}

func (t *table) close() error { return t.io.Close() }
