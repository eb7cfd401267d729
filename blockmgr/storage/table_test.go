package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// rewriteHeader changes all copies of the header of a closed table and fixes
// their CRCs.
func rewriteHeader(t *testing.T, path string, change func(page []byte)) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for page := range slices.Chunk(b[:headerCopies*headerSize], headerSize) {
		change(page)
		binary.LittleEndian.PutUint32(page[4092:], crc32.Checksum(page[:4092], castagnoli()))
	}
	noError(t, os.WriteFile(path, b, 0o600))
}

func TestTableThatDoesNotFitIsMadeAnewOrRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(page []byte)
		refuse error
		warn   string
		aside  string
	}{
		{"newer version", func(b []byte) { b[8] = 9 }, nil, "newer version: 9, want 2", "slots.table.newer"},
		{"version of nobody", func(b []byte) { b[8] = 0 }, nil, "cannot be read: version 0", "slots.table.unreadable"},
		{"impossible directory", func(b []byte) { b[28] = 65 }, nil, "cannot be read: 65 namespaces", "slots.table.unreadable"},
		{"foreign file", func(b []byte) { b[0] = 'X' }, ErrForeign, "", ""},
		{"another extent size", func(b []byte) { b[18]++ }, nil, "extents of", ""},
		{"host table", func(b []byte) { b[12] = 1 }, ErrForeign, "", ""},
		{"host table of version 1", func(b []byte) { b[8], b[12] = 1, 1 }, ErrForeign, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			d := openDisk(t, diskConfig(dir))
			part := growDisk(t, d, nsA)
			noError(t, errors.Join(WritePages(part.Slots.TakeDirty(nil)), d.Close([]DiskExtent{part})))
			table := filepath.Join(dir, tableName)
			rewriteHeader(t, table, c.change)
			before, _ := os.ReadFile(table)

			core, logs := observer.New(zap.WarnLevel)
			cfg := diskConfig(dir)
			cfg.Log = zap.New(core)
			d, err := OpenDiskArena(cfg)
			if c.refuse != nil {
				after, _ := os.ReadFile(table)
				if !errors.Is(err, c.refuse) || !bytes.Equal(before, after) {
					t.Fatalf("got %v, want %v and an untouched file", err, c.refuse)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close(nil)
			first, _ := logs.All()[0].ContextMap()["error"].(string)
			if !strings.Contains(first, c.warn) || logs.Len() != 1 {
				t.Errorf("%d warnings, the first %q, want %q", logs.Len(), first, c.warn)
			}
			if c.aside != "" {
				after, err := os.ReadFile(filepath.Join(dir, c.aside))
				if named, _ := logs.All()[0].ContextMap()["old_table"].(string); err != nil || !bytes.Equal(before, after) || named != filepath.Join(dir, c.aside) {
					t.Errorf("the old table is not at %q: %v", named, err)
				}
			}
			if files, _ := extentFiles(dir); len(files) != 0 {
				t.Errorf("extents %v are still there", files)
			}
		})
	}
}

func TestNamespaceDirectoryIsBoundedAndReusesUnusedEntries(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, diskConfig(dir))
	part := growDisk(t, d, nsA)
	fill := func(d *DiskArena, run byte) (named int) {
		for i := range 2 * MaxNamespaces {
			ns, err := d.Namespace(kv.NamespaceID{0xff, run, byte(i)}, testSlot)
			if err != nil {
				continue
			}
			if ns == 0 {
				t.Fatal("an index that has an extent was given away")
			}
			named++
		}
		return named
	}
	// Without extents they keep their index as long as the arena is open: a pool
	// that has yielded everything would share it with another otherwise.
	if n := fill(d, 1); n != MaxNamespaces-1 {
		t.Errorf("%d namespaces got an index, want %d", n, MaxNamespaces-1)
	}
	if ns, err := d.Namespace(kv.NamespaceID{0xff, 1, 0}, testSlot); err != nil || ns != 1 {
		t.Errorf("the index of a namespace without extents became %d, %v", ns, err)
	}
	if _, err := d.Namespace(nsA, 2*testSlot); err == nil {
		t.Error("a namespace with another slot size was accepted")
	}
	noError(t, d.Close([]DiskExtent{part}))
	d = openDisk(t, diskConfig(dir))
	defer d.Close(nil)
	if ns, err := d.Namespace(nsA, testSlot); err != nil || ns != 0 {
		t.Errorf("the namespace with an extent got index %d, %v", ns, err)
	}
	if n := fill(d, 2); n != MaxNamespaces-1 {
		t.Errorf("after a restart %d namespaces got an index, want %d", n, MaxNamespaces-1)
	}
	d.Forget(9)
	if ns, err := d.Namespace(kv.NamespaceID{0xff, 3}, testSlot); err != nil || ns != 9 {
		t.Errorf("the index that was given back became %d, %v", ns, err)
	}
}

func TestHeaderTornAtAnyByteIsTheOldOneOrTheNew(t *testing.T) {
	h := header{kind: kindDisk, extentBytes: 1 << 20, stride: 256, nextExtent: 7}
	write := func(to []byte, sequence uint64, bytes int) {
		h.sequence, h.nextExtent = sequence, 100+sequence
		copy(to[sequence%headerCopies*headerSize:], h.encode()[:bytes])
	}
	old := make([]byte, headerCopies*headerSize)
	// The first two writes are those of a table that is made.
	write(old, 1, headerSize)
	for sequence := uint64(2); sequence < 5; sequence++ {
		for n := range headerSize + 1 {
			b := bytes.Clone(old)
			write(b, sequence, n)
			got, err := decodeHeaders(b)
			if err != nil || got.nextExtent != 100+got.sequence || got.sequence != sequence && got.sequence != sequence-1 {
				t.Fatalf("write %d cut after %d bytes: %+v, %v", sequence, n, got, err)
			}
		}
		write(old, sequence, headerSize)
	}
}

func TestTableWithoutAWholeHeaderIsMadeAnew(t *testing.T) {
	for name, damage := range map[string]func(copies []byte){
		"both copies damaged": func(b []byte) { b[100] ^= 1; b[headerSize+100] ^= 1 },
		"never written":       func(b []byte) { clear(b) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d := openDisk(t, diskConfig(dir))
			part := growDisk(t, d, nsA)
			noError(t, d.Close([]DiskExtent{part}))
			path := filepath.Join(dir, tableName)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damage(b[:headerCopies*headerSize])
			noError(t, os.WriteFile(path, b, 0o600))
			d = openDisk(t, diskConfig(dir))
			if files, _ := extentFiles(dir); len(files) != 0 {
				t.Errorf("extents %v are still there", files)
			}
			next := growDisk(t, d, nsA)
			if next.ID <= part.ID {
				t.Errorf("extent %d comes after %d", next.ID, part.ID)
			}
			d.Abandon([]DiskExtent{next})
		})
	}
}

func TestNamespaceNeedsSlotsOfWholePages(t *testing.T) {
	d := openDisk(t, diskConfig(t.TempDir()))
	defer d.Close(nil)
	for _, slotBytes := range []uint64{0, 1, PageSize + 1} {
		if _, err := d.Namespace(nsA, slotBytes); err == nil || !strings.Contains(err.Error(), "multiple of 4096") {
			t.Errorf("slots of %d bytes: %v", slotBytes, err)
		}
	}
}
