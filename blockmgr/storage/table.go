package storage

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// table is the slot table of one arena: two copies of the header, in a host table
// the session table, and a section of records for each extent. Its file is locked
// while it is open.
//
// A host table is mapped: a record is in the file as soon as it is put. A disk table
// is an image in memory, whose changed pages are written in batches.
type table struct {
	path string
	file *os.File
	// io is file behind what extent.DiskOptions.Wrap put in front of it.
	io   extent.File
	wrap func(string, extent.File) extent.File
	unit uint64
	// kind and stride are the header's. They do not change once the table is open:
	// sections are found without mu.
	kind   arenaKind
	stride uint32
	// sectionsHold means that the sections of an earlier agent hold. When it is false,
	// coldReason says why an existing table was not used, nil without one.
	sectionsHold bool
	coldReason   error
	// oldPath is the new name of a table that could not be read.
	oldPath string
	// migrated counts the records taken over from a table of an older version.
	migrated migrated
	// head is the part of a host table before its first section, mapped; nil in a disk
	// table. sessions lies in it.
	head     []byte
	sessions *SessionTable

	mu     sync.Mutex
	header header
}

// openTable opens or makes the file at path and locks it. With anySize it accepts a
// table that was made for extents of another size. It calls check under the lock, before it
// changes the file; empty is true for a file without bytes. An error of check is openTable's.
// Unless sectionsHold, the caller calls reset next.
func openTable(path string, want header, anySize bool, unit uint64, wrap func(string, extent.File) extent.File, check func(empty bool) error) (*table, error) {
	f, err := openLocked(path)
	if err != nil {
		return nil, err
	}
	t := &table{path: path, file: f, io: wrapped(path, f, wrap), wrap: wrap, unit: unit, kind: want.kind, stride: want.stride, header: want}
	st, err := f.Stat()
	if err == nil {
		err = check(st.Size() == 0)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	if err := t.takeOver(&want, anySize); err != nil {
		return nil, errors.Join(fmt.Errorf("slot table %s: %w", path, err), t.close())
	}
	return t, nil
}

// takeOver reads the table in the file. A table that cannot be used leaves t cold, with the reason
// in coldReason. A damaged or newer table is renamed, so that no data is lost; reset may overwrite
// any other.
func (t *table) takeOver(want *header, anySize bool) error {
	err := t.read(want, anySize)
	switch {
	case errors.Is(err, errNewer):
		t.coldReason = err
		return t.rename("newer")
	case errors.Is(err, errUnreadable):
		t.coldReason = err
		return t.rename("unreadable")
	case errors.Is(err, errStale):
		t.coldReason = err
		return nil
	}
	return err
}

// read takes over the table in the file, if there is one and it fits want; then t.sectionsHold is
// true. A table has a section for each extent, with the records of its slots. A table of an older
// version is migrated first. With anySize a table for extents of another size fits too. errStale
// means that the table may be made anew, errNewer and errUnreadable that it must be renamed
// first.
func (t *table) read(want *header, anySize bool) error {
	copies := make([]byte, headerCopies*headerSize)
	n, err := t.file.ReadAt(copies, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n == 0 { // a new file
		return nil
	}
	old, err := decodeHeaders(copies[:n])
	switch {
	case errors.Is(err, errOlder) && old.kind != want.kind:
		return old.fits(want) // an error that names the kinds
	case errors.Is(err, errOlder) && t.kind == kindHost:
		return fmt.Errorf("%w: %w, which kept nothing in host memory", errStale, err)
	case errors.Is(err, errOlder):
		if old, err = t.migrate(&old); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	// No id is used twice, even if the sections are dropped.
	t.header.nextExtent = old.nextExtent
	// With anySize the table's own size is the wanted one.
	if anySize && old.extentBytes <= MaxExtentBytes && old.stride == strideOf(old.extentBytes) {
		resized := *want
		resized.extentBytes, resized.stride = old.extentBytes, old.stride
		want = &resized
	}
	if err := old.fits(want); err != nil {
		return err
	}
	if t.kind == kindHost {
		if err := t.mapHead(); err != nil {
			return fmt.Errorf("%w: %w", errStale, err)
		}
		if err := t.sessions.check(); err != nil {
			return fmt.Errorf("%w: %w", errUnreadable, err)
		}
	}
	t.header, t.stride, t.sectionsHold = old, old.stride, true
	return nil
}

// wrapped returns an open file behind what wrap puts in front of it; nil for nothing.
func wrapped(path string, f *os.File, wrap func(string, extent.File) extent.File) extent.File {
	if wrap == nil {
		return extent.NewFile(f)
	}
	return wrap(path, extent.NewFile(f))
}

// openLocked opens path and takes its lock. The previous owner of a host table may
// unlink it, so the locked file must still be the one at path.
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
	return nil, fmt.Errorf("slot table %s: it is replaced again and again: %w", path, ErrLocked)
}

// reset empties the table and writes both copies of its header. Extent ids start at nextExtent.
func (t *table) reset(nextExtent uint64) error {
	if err := t.unmapHead(); err != nil {
		return fmt.Errorf("slot table %s: %w", t.path, err)
	}
	if err := t.file.Truncate(0); err != nil {
		return fmt.Errorf("slot table: %w", err)
	}
	if t.kind == kindHost {
		if err := t.mapHead(); err != nil {
			return fmt.Errorf("slot table %s: %w", t.path, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for range headerCopies {
		if err := t.updateLocked(func(h *header) { h.nextExtent = nextExtent }); err != nil {
			return err
		}
	}
	return nil
}

// rename gives the table's file the given suffix, in place of an earlier file of that
// name, and puts an empty file at the table's path.
func (t *table) rename(suffix string) error {
	oldPath := t.path + "." + suffix
	if err := t.unmapHead(); err != nil {
		return err
	}
	if err := os.Rename(t.path, oldPath); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	f, err := openLocked(t.path)
	if err != nil {
		return err
	}
	err = t.io.Close()
	t.file, t.io, t.oldPath = f, wrapped(t.path, f, t.wrap), oldPath
	return err
}

// headBytes returns the size of the part before the first section.
func (t *table) headBytes() uint64 {
	size := uint64(headerCopies * headerSize)
	if t.kind == kindHost {
		size += sessionTableBytes
	}
	return extent.RoundUp(size, t.unit)
}

// mapHead maps the part of a host table before its first section: headers and session table.
func (t *table) mapHead() error {
	mem, err := extent.MapShared(t.file, 0, t.headBytes())
	if err != nil {
		return err
	}
	t.head = mem
	t.sessions = newSessionTable(extent.Words(mem[headerCopies*headerSize:][:sessionTableBytes]), pidNamespace())
	return nil
}

// unmapHead unmaps the headers and the session table of a host table. It does nothing when they are
// not mapped.
func (t *table) unmapHead() error {
	if t.head == nil {
		return nil
	}
	t.sessions.close()
	err := unix.Munmap(t.head)
	t.head = nil
	return err
}

// updateLocked changes the header and stores it in the older of its two copies in the file, so that
// one copy is whole at any time. A host table goes through the mapping, because hugetlbfs takes no
// writes.
func (t *table) updateLocked(change func(*header)) error {
	next := t.header
	change(&next)
	next.sequence++
	page, off := next.encode(), int64(next.sequence%headerCopies)*headerSize
	if t.head != nil {
		copy(t.head[off:], page)
		t.header = next
		return nil
	}
	_, err := t.io.WriteAt(page, off)
	if err == nil {
		err = t.io.Sync()
	}
	if err != nil {
		return fmt.Errorf("slot table %s: header: %w", t.path, err)
	}
	t.header = next
	return nil
}

// takeExtentID returns an id that no extent of this arena has had.
func (t *table) takeExtentID() (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.header.nextExtent
	if id > math.MaxUint32 {
		return 0, fmt.Errorf("slot table %s: all extent ids up to %d are used", t.path, uint32(math.MaxUint32))
	}
	return uint32(id), t.updateLocked(func(h *header) { h.nextExtent++ })
}

// namespace returns the index of a namespace in the header's directory, and enters a new one. A full
// directory gives up an entry for which inUse is false. ErrNamespaces: there is none. A namespace
// whose entry has slots of another size is an error too.
func (t *table) namespace(id kv.NamespaceID, slotBytes uint64, inUse func(uint32) bool) (uint32, error) {
	if slotBytes == 0 || slotBytes%PageSize != 0 {
		return 0, fmt.Errorf("namespace %s: slots of %d bytes: want a multiple of %d", id, slotBytes, PageSize)
	}
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
			return 0, fmt.Errorf("namespace %s: %w: %s holds %d, the most it can", id, ErrNamespaces, t.path, MaxNamespaces)
		}
		next[i] = item
	}
	return uint32(i), t.updateLocked(func(h *header) { h.directory = next })
}

// item returns the directory entry of index i; ok is false when there is none.
func (t *table) item(i uint32) (item directoryItem, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(i) >= len(t.header.directory) {
		return directoryItem{}, false
	}
	return t.header.directory[i], true
}

// close unmaps the head, closes the file and so gives up the lock.
func (t *table) close() error { return errors.Join(t.unmapHead(), t.io.Close()) }
