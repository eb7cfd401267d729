package blockmgr

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// recordOffset finds the record of a slot in the slot table of a directory, of
// which no agent has to be running: sections start on a page with their magic
// and the id of their extent, and the records follow on the next page.
func recordOffset(t fataler, dir string, s Slot) (path string, off int64) {
	t.Helper()
	path = filepath.Join(dir, "slots.table")
	table, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for at := 0; at+storage.PageSize <= len(table); at += storage.PageSize {
		head := table[at:]
		if bytes.HasPrefix(head, []byte("BYARDSC1")) && binary.LittleEndian.Uint32(head[8:]) == s.Extent {
			return path, int64(at) + storage.PageSize + int64(s.Index)*storage.RecordSize
		}
	}
	t.Fatalf("extent %d has no section in %s", s.Extent, path)
	return "", 0
}

// rewriteRecord changes the record of a slot while no agent runs.
func rewriteRecord(t fataler, dir string, s Slot, change func(*storage.Record)) {
	t.Helper()
	path, off := recordOffset(t, dir, s)
	overwrite(t, path, off, func(b []byte) {
		r, err := storage.DecodeRecord(b)
		if err != nil {
			t.Fatalf("%v", err)
		}
		change(&r)
		copy(b, storage.AppendRecord(nil, &r))
	})
}

// tearRecord leaves garbage where the record of a slot was.
func tearRecord(t fataler, dir string, s Slot) {
	t.Helper()
	path, off := recordOffset(t, dir, s)
	overwrite(t, path, off, func(b []byte) {
		for i := range b[len(b)/2:] {
			b[len(b)/2+i] ^= 0xa5
		}
	})
}

// overwrite changes the bytes of one record in a file.
func overwrite(t fataler, path string, off int64, change func(b []byte)) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer f.Close()
	b := make([]byte, storage.RecordSize)
	if _, err := f.ReadAt(b, off); err != nil {
		t.Fatalf("%v", err)
	}
	change(b)
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatalf("%v", err)
	}
}

// flip inverts one byte of a file.
func flip(t fataler, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatalf("%v", err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatalf("%v", err)
	}
	if err := f.Sync(); err != nil {
		t.Fatalf("%v", err)
	}
}
