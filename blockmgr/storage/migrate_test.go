package storage

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// appendRecord1 is the encoding of table version 1.
func appendRecord1(b []byte, r *Record) []byte {
	n := len(b)
	b = AppendRecord(b, r)
	b[n+101] = 1
	clear(b[n+112 : n+128])
	return binary.LittleEndian.AppendUint32(b[:n+124], crc32.Checksum(b[n:n+124], castagnoli()))
}

// testdata/records1.txt is what version 1 froze.
func TestRecordsOfVersion1AreRead(t *testing.T) {
	text, err := os.ReadFile("testdata/records1.txt")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "#" {
			continue
		}
		raw, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		want := vectors[name]
		want.Priority = 0 // there was none
		if got, err := decodeRecord1(raw); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
		if got := appendRecord1(nil, &want); !bytes.Equal(got, raw) {
			t.Errorf("%s encodes to\n%x, want\n%x", name, got, raw)
		}
		raw[30]++
		if _, err := decodeRecord1(raw); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s with a changed byte: %v", name, err)
		}
		checked++
	}
	owned := 0 // version 1 knows no owners
	for _, v := range vectors {
		if v.Owner != 0 {
			owned++
		}
	}
	if checked != len(vectors)-owned {
		t.Errorf("%d vectors checked, want %d", checked, len(vectors)-owned)
	}
}

// writeTable1 leaves a directory as an agent of version 1 does: two extents of one
// namespace, the second of which was never used, and one that nothing tells of.
func writeTable1(t *testing.T, dir string, kind arenaKind, slots int) (records []Record) {
	t.Helper()
	h := header{
		kind: kind, extentBytes: uint64(slots) * testSlot, stride: strideOf(uint64(slots) * testSlot),
		directory: []directoryItem{{nsB, testSlot}, {nsA, testSlot}},
	}
	page := h.encode()
	page[8] = 1
	clear(page[48:64])
	binary.LittleEndian.PutUint32(page[4092:], crc32.Checksum(page[:4092], castagnoli()))
	section := make([]byte, 0, h.stride*RecordSize)
	for i := range slots {
		r := Record{Namespace: 1, Generation: uint64(i + 1)}
		if i%2 == 0 {
			r.Key, r.Length, r.State, r.Checksum, r.Recency = kv.BlockKey{byte(i)}.InGroup(7), testSlot, StateSealed, 99, 5
		}
		records = append(records, r)
		section = appendRecord1(section, &r)
	}
	table := append(page, make([]byte, int(h.stride)*RecordSize)...) // of extent 0
	table = append(table, section...)
	noError(t, os.WriteFile(filepath.Join(dir, tableName), table, 0o600))
	for id := range 2 {
		content := bytes.Repeat([]byte{byte(id)}, slots*testSlot)
		noError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("extent-%08x", id)), content, 0o600))
	}
	return records
}

func TestTableOfVersion1IsMigrated(t *testing.T) {
	dir := t.TempDir()
	cfg := diskConfig(dir)
	want := writeTable1(t, dir, kindDisk, 4)
	for range 2 { // the second time it is a table of today
		d := openDisk(t, cfg)
		ns, err := d.Namespace(nsA, testSlot)
		if err != nil || ns != 1 {
			t.Fatalf("index %d, %v", ns, err)
		}
		parts := slices.Collect(d.Claim(ns))
		if len(parts) != 1 || parts[0].ID != 1 {
			t.Fatalf("%d extents", len(parts))
		}
		for i := range want {
			got, err := parts[0].Slots.Get(uint32(i))
			if err != nil || got != want[i] {
				t.Errorf("slot %d: %+v, %v, want %+v", i, got, err, want[i])
			}
		}
		buf, free, err := extent.NewBuffer(testSlot)
		if err != nil {
			t.Fatal(err)
		}
		if err := parts[0].Extent.ReadSlot(3, buf, extent.Life{}); err != nil || buf[0] != 1 {
			t.Errorf("the bytes of slot 3 begin with %d, %v", buf[0], err)
		}
		free()
		next := growDisk(t, d, nsB)
		if next.ID != 2 && next.ID != 3 {
			t.Errorf("the next extent is %d", next.ID)
		}
		noError(t, d.Close(append(parts, next)))
		noError(t, os.Remove(next.Extent.Path()))
	}
	if _, err := os.Stat(filepath.Join(dir, migratingName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the new table is still under its first name: %v", err)
	}
}

// A migration that is cut short at any write is done again at the next start.
func TestMigrationThatIsCutShortIsDoneAgain(t *testing.T) {
	for after := 0; ; after++ {
		dir := t.TempDir()
		want := writeTable1(t, dir, kindDisk, 4)
		cfg, writes := diskConfig(dir), 0
		cfg.Disk.Wrap = func(_ string, f extent.File) extent.File {
			return &storagetest.Faulty{File: f, Plan: func(op storagetest.Op, _ int) storagetest.Fault {
				if op == storagetest.OpWrite || op == storagetest.OpSync {
					if writes++; writes > after {
						return storagetest.FaultEIO
					}
				}
				return storagetest.FaultNone
			}}
		}
		d, err := OpenDiskArena(cfg)
		if err == nil {
			if after < 4 {
				t.Errorf("a migration took %d writes", after)
			}
			d.Abandon(nil)
			return
		}
		d = openDisk(t, diskConfig(dir))
		ns := indexOf(t, d.arena, nsA)
		parts := slices.Collect(d.Claim(ns))
		if len(parts) != 1 {
			t.Fatalf("%d extents after %d writes", len(parts), after)
		}
		if got, err := parts[0].Slots.Get(2); err != nil || got != want[2] {
			t.Errorf("after %d writes: %+v, %v", after, got, err)
		}
		d.Abandon(parts)
	}
}

// Nothing of an agent of version 1 is in host memory: its table is made anew.
func TestHostTableOfVersion1IsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	writeTable1(t, dir, kindHost, 4)
	h := openHost(t, hostConfig(dir))
	defer h.Close(nil, false)
	if h.Warm() || h.Extents() != 0 {
		t.Errorf("warm %v, %d extents", h.Warm(), h.Extents())
	}
}

// A rollback starts: the host table of a later agent is set aside as well.
func TestNewerHostTableIsSetAside(t *testing.T) {
	dir := t.TempDir()
	h := openHost(t, hostConfig(dir))
	part := growHost(t, h, nsA)
	h.Abandon([]HostExtent{part})
	rewriteHeader(t, filepath.Join(dir, tableName), func(b []byte) { b[8] = 3 })
	h = openHost(t, hostConfig(dir))
	if h.Warm() || h.Extents() != 0 {
		t.Errorf("warm %v, %d extents", h.Warm(), h.Extents())
	}
	if _, err := os.Stat(filepath.Join(dir, "slots.table.newer")); err != nil {
		t.Error(err)
	}
	next := growHost(t, h, nsA)
	if next.ID <= part.ID {
		t.Errorf("extent %d comes after %d, which clients may know", next.ID, part.ID)
	}
	if _, err := OpenHostArena(hostConfig(dir)); !errors.Is(err, ErrLocked) {
		t.Errorf("the new table is not locked: %v", err)
	}
	h.Abandon([]HostExtent{next})
	h = openHost(t, hostConfig(dir))
	if !h.Warm() || h.Extents() != 1 {
		t.Errorf("after another restart: warm %v, %d extents", h.Warm(), h.Extents())
	}
	h.Abandon(nil)
}

// One flipped bit in the version of one copy is no newer version.
func TestFlippedVersionOfOneCopyIsDamage(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, diskConfig(dir))
	part := growDisk(t, d, nsA)
	d.Abandon([]DiskExtent{part})
	path := filepath.Join(dir, tableName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sequence := func(copy int) uint64 { return binary.LittleEndian.Uint64(b[copy*headerSize+56:]) }
	older := 0
	if sequence(1) < sequence(0) {
		older = 1
	}
	b[older*headerSize+8] ^= 1 << 4
	noError(t, os.WriteFile(path, b, 0o600))
	d = openDisk(t, diskConfig(dir))
	if got := len(slices.Collect(d.Claim(0))); got != 1 {
		t.Errorf("%d extents", got)
	}
	d.Abandon(nil)
}
