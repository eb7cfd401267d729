package killloop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// tierFiles is the content of a tier's files while no agent has them open.
type tierFiles struct {
	// Sealed are the blocks with a sealed record. In host memory the record's
	// generation must also be the slot's.
	Sealed map[kv.StoredKey]struct{}
	// Used is the number of slots that are not free, of Slots.
	Used, Slots int
	// Torn is the number of records that are damaged.
	Torn int
}

// The parts of a slot table that package storage documents: sections begin on a
// page with a head, and their records follow on the next one.
const (
	tableName   = "slots.table"
	sectionMark = "BYARDSC1"
	sectionSum  = 32 // where the head's CRC32C is, of what is before it
)

// readTier returns the sealed blocks of a tier from the slot table in dir, as a new agent would
// find them. host is true for the host tier. A directory without a table holds nothing.
func readTier(dir string, host bool) (tierFiles, error) {
	found := tierFiles{Sealed: map[kv.StoredKey]struct{}{}}
	table, err := os.ReadFile(filepath.Join(dir, tableName))
	if errors.Is(err, os.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	extents, err := extentPaths(dir)
	if err != nil {
		return found, err
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	// Each extent has a section of the table: a page with a header (extent id at byte 8, number of
	// slots at 16), and its records. Any page may begin one.
	for at := 0; at+storage.PageSize <= len(table); at += storage.PageSize {
		head := table[at:]
		if string(head[:len(sectionMark)]) != sectionMark ||
			binary.LittleEndian.Uint32(head[sectionSum:]) != crc32.Checksum(head[:sectionSum], castagnoli) {
			continue
		}
		path, ok := extents[binary.LittleEndian.Uint32(head[8:])]
		if !ok {
			continue // the extent was dropped and its section not used again
		}
		if err := found.section(table[at+storage.PageSize:], int(binary.LittleEndian.Uint32(head[16:])), path, host); err != nil {
			return found, err
		}
	}
	return found, nil
}

// section adds the slot records of one extent (a file of slots) to f. path is the extent's file. In
// the host tier the file begins with a generation word for each slot: a record with another
// generation is out of date. A torn record counts, and its slot as used.
func (f *tierFiles) section(records []byte, slots int, path string, host bool) error {
	if len(records) < slots*storage.RecordSize {
		return fmt.Errorf("slot table: %s has %d slots and %d bytes of records", path, slots, len(records))
	}
	var words []byte
	if host {
		words = make([]byte, 8*slots)
		if err := readStart(path, words); err != nil {
			return err
		}
	}
	f.Slots += slots
	for i := range slots {
		r, err := storage.DecodeRecord(records[i*storage.RecordSize:])
		if err != nil {
			f.Torn++
			f.Used++
			continue
		}
		if r.State != storage.StateFree {
			f.Used++
		}
		if r.State == storage.StateSealed && (!host || binary.LittleEndian.Uint64(words[8*i:]) == r.Generation) {
			f.Sealed[r.Key] = struct{}{}
		}
	}
	return nil
}

// readStart fills b from the start of a file, where an extent has its generation words.
func readStart(path string, b []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.ReadAt(b, 0); err != nil {
		return fmt.Errorf("generation words of %s: %w", path, err)
	}
	return nil
}

// extentPaths returns the paths of the extents (files of slots) in a directory by their id. It
// leaves out those that were never finished.
func extentPaths(dir string) (map[uint32]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "extent-*-*"))
	if err != nil {
		return nil, err
	}
	found := make(map[uint32]string, len(paths))
	for _, p := range paths {
		var section, id uint32
		name := filepath.Base(p)
		if n, err := fmt.Sscanf(name, "extent-%x-%x", &section, &id); err != nil || n != 2 || name != fmt.Sprintf("extent-%08x-%08x", section, id) {
			continue // one that was never finished
		}
		found[id] = p
	}
	return found, nil
}
