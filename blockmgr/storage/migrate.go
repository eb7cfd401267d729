package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// tableVersion1 is a disk table with one header page, of the same layout, and then
// the records of each extent, without a section head, at the offset that follows from
// the extent's id. The names of its extents have the id only. A record has no
// priority, and its CRC covers bytes 0..123.
const tableVersion1 = 1

// migratingName is the name of the new table until it is whole.
const migratingName = tableName + ".new"

// migrated counts what migrate took over.
type migrated struct {
	extents, slots int
}

// migrate replaces a disk table of version 1, whose header is old, by one of
// tableVersion and returns the new header. After a kill at any moment migrate can be
// repeated: the old table does not change before the new one has its name, and an
// extent is found under its old name and under its new one.
func (t *table) migrate(old *header) (header, error) {
	path := filepath.Join(filepath.Dir(t.path), migratingName)
	if err := unlink(path); err != nil {
		return header{}, err
	}
	f, err := openLocked(path)
	if err != nil {
		return header{}, err
	}
	next := &table{path: t.path, file: f, io: wrapped(path, f, t.wrap), wrap: t.wrap, unit: t.unit, kind: t.kind, stride: old.stride, header: *old}
	if err = t.migrateTo(next); err == nil {
		err = os.Rename(path, t.path)
	}
	if err != nil {
		return header{}, errors.Join(fmt.Errorf("migrate from version %d: %w", tableVersion1, err), next.close(), unlink(path))
	}
	// An agent that waits for the old file's lock finds another file at the path.
	err = t.io.Close()
	t.file, t.io, t.migrated = next.file, next.io, next.migrated
	return next.header, err
}

// migrateTo writes the header and the sections of the new table next, renames the extents and
// syncs the table.
func (t *table) migrateTo(next *table) error {
	dir := filepath.Dir(t.path)
	files, err := extentFiles(dir)
	if err != nil {
		return err
	}
	for _, from := range files {
		next.header.nextExtent = max(next.header.nextExtent, uint64(from.id)+1)
	}
	for range headerCopies { // each update writes the older copy
		if err := next.updateLocked(func(*header) {}); err != nil {
			return err
		}
	}
	for _, from := range files {
		to := extentFile{section: from.id, id: from.id, whole: true}
		if from.text == "" && from != to {
			continue // version 1 made no such name
		}
		slots, err := t.migrateExtent(next, from)
		if err != nil {
			return err
		}
		if slots == 0 {
			continue
		}
		if err := os.Rename(filepath.Join(dir, from.name()), filepath.Join(dir, to.name())); err != nil {
			return err
		}
		next.migrated.extents++
		next.migrated.slots += slots
	}
	return next.io.Sync()
}

// migrateExtent writes the section of one extent, the records of its slots, into the new
// table and returns the number of slots: 0 if the old table does not say whose extent it is.
func (t *table) migrateExtent(next *table, from extentFile) (slots int, err error) {
	records := make([]byte, uint64(next.stride)*RecordSize)
	// What the file lacks stays zero: slots that were never used.
	off := int64(headerSize) + int64(from.id)*int64(len(records))
	if _, err := t.io.ReadAt(records, off); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	st, err := os.Lstat(filepath.Join(filepath.Dir(t.path), from.name()))
	if err != nil {
		return 0, err
	}
	head := sectionHead{extent: from.id}
	item, ok := directoryItem{}, false
	for raw := range slices.Chunk(records, RecordSize) {
		if r, err := decodeRecord1(raw); err == nil {
			head.namespace = r.Namespace
			item, ok = next.item(r.Namespace)
			break
		}
	}
	// A version 1 table names an extent's namespace in its records alone.
	if !ok || item.slotBytes == 0 || !st.Mode().IsRegular() || uint64(st.Size())%item.slotBytes != 0 {
		return 0, nil
	}
	n := uint64(st.Size()) / item.slotBytes
	if n == 0 || n > uint64(next.stride) {
		return 0, nil
	}
	head.slots, head.slotBytes = uint32(n), item.slotBytes
	s, err := next.createSection(from.id, head)
	if err != nil {
		return 0, err
	}
	for i := range head.slots {
		r, err := decodeRecord1(records[i*RecordSize:][:RecordSize])
		if err == nil && r.Namespace == head.namespace {
			s.Put(i, &r)
		}
	}
	return int(n), errors.Join(WritePages(s.TakeDirty(nil)), s.close())
}

// decodeRecord1 decodes a record of version 1; see tableVersion1. It checks the old CRC, and then
// turns the bytes into a record of the current version.
func decodeRecord1(b []byte) (Record, error) {
	le := binary.LittleEndian
	if got, want := crc32.Checksum(b[:124], castagnoli()), le.Uint32(b[124:]); got != want || b[101] != 1 {
		return Record{}, fmt.Errorf("%w: version %d, CRC %08x, computed %08x", ErrBadRecord, b[101], want, got)
	}
	image := [RecordSize]byte(b[:RecordSize])
	image[101] = recordVersion
	le.PutUint32(image[124:], recordCRC(image[:]))
	return DecodeRecord(image[:])
}
