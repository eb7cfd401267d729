package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func hostConfig(dir string) ArenaConfig {
	return ArenaConfig{Dir: dir, Bytes: 8 * testSlot, ExtentBytes: 4 * testSlot, Log: zap.NewNop()}
}

func openHost(t *testing.T, cfg ArenaConfig) *HostArena {
	t.Helper()
	h, err := OpenHostArena(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func growHost(t *testing.T, h *HostArena, id kv.NamespaceID) HostExtent {
	t.Helper()
	part, err := h.Grow(indexOf(t, h.arena, id), testSlot, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return part
}

// tmpfsDir is a directory in memory.
func tmpfsDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "blockyard-test-")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// hugeDir is a directory on hugetlbfs with room for pages huge pages.
func hugeDir(t *testing.T, pages uint64) string {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "hugetlbfs", 0, "mode=0700"); err != nil {
		t.Skipf("no hugetlbfs can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	var st unix.Statfs_t
	noError(t, unix.Statfs(dir, &st))
	free, err := os.ReadFile(fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/free_hugepages", st.Bsize>>10))
	var n uint64
	if err == nil {
		_, err = fmt.Sscan(string(free), &n)
	}
	if err != nil || n < pages {
		t.Skipf("%d huge pages are free, the test needs %d (see /proc/sys/vm/nr_hugepages), %v", n, pages, err)
	}
	return dir
}

func TestHostArenaComesBackWithBytesRecordsPinsAndSessions(t *testing.T) {
	for name, where := range map[string]func(t *testing.T) string{
		"tmpfs":             func(t *testing.T) string { return tmpfsDir(t) },
		"hugetlbfs":         func(t *testing.T) string { return hugeDir(t, 8) },
		"other file system": func(t *testing.T) string { return t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) { testWarmRestart(t, where(t)) })
	}
}

func testWarmRestart(t *testing.T, dir string) {
	h := openHost(t, hostConfig(dir))
	if h.Warm() {
		t.Error("an arena that was just made is warm")
	}
	other, part := growHost(t, h, nsB), growHost(t, h, nsA)
	want := Record{Key: kv.BlockKey{9}.InGroup(0), Namespace: 1, Generation: 5, State: StateSealed, Checksum: 77, Priority: 2}
	copy(part.Extent.Slot(2), "the bytes of a block")
	part.Slots.Put(2, &want)
	part.Slots.SetPins(2, 1<<63|1)
	noError(t, part.Extent.SetGeneration(2, 5))
	bit, err := h.Sessions().Begin(42, nsA)
	if err != nil {
		t.Fatal(err)
	}
	session := SessionRecord{Session: 42, Namespace: nsA, PinBit: bit, Processes: []Process{{PID: 7, Start: 8}}}
	noError(t, h.Sessions().AddProcess(42, session.Processes[0]))
	geo := part.Extent.Geometry()
	client, err := unix.Mmap(int(part.Extent.File().Fd()), 0, int(geo.FileBytes()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(client)
	h.Abandon([]HostExtent{other, part})

	h = openHost(t, hostConfig(dir))
	if !h.Warm() {
		t.Fatal("the arena is cold")
	}
	if diff := cmp.Diff([]SessionRecord{session}, h.Sessions().All()); diff != "" {
		t.Errorf("sessions:\n%s", diff)
	}
	ns := indexOf(t, h.arena, nsA)
	parts := h.Claim(ns)
	if len(parts) != 1 || parts[0].ID != part.ID || len(h.Claim(ns)) != 0 {
		t.Fatalf("claimed %+v", parts)
	}
	again := parts[0]
	if got, err := again.Slots.Get(2); err != nil || got != want {
		t.Errorf("record %+v, %v", got, err)
	}
	if got, err := again.Slots.Get(3); err != nil || got.State != StateFree || got.Generation != 1 || again.Slots.Slots() != 4 {
		t.Errorf("free record %+v of %d, %v", got, again.Slots.Slots(), err)
	}
	if got := again.Slots.Pins(2); got != 1<<63|1 || again.Slots.Pins(1) != 0 {
		t.Errorf("pins %#x and %#x", got, again.Slots.Pins(1))
	}
	if got, err := again.Extent.Generation(2); err != nil || got != 5 {
		t.Errorf("generation %d, %v", got, err)
	}
	if !strings.HasPrefix(string(again.Extent.Slot(2)), "the bytes of a block") {
		t.Error("bytes differ")
	}
	// The client and the new agent have the same memory.
	copy(client[geo.Offset(1):], "still here")
	if !strings.HasPrefix(string(again.Extent.Slot(1)), "still here") {
		t.Error("what a client that survived writes is not there")
	}
	noError(t, h.Close(parts, false))
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files are left, unclaimed extents among them", len(left))
	}
}

func TestSectionOfANewExtentHasNothingOfTheOneBefore(t *testing.T) {
	h := openHost(t, hostConfig(t.TempDir()))
	old := growHost(t, h, nsA)
	old.Slots.Put(1, &Record{Key: kv.BlockKey{9}.InGroup(0), Generation: 5, State: StateSealed})
	old.Slots.SetPins(1, 3)
	h.Drop(old)
	part := growHost(t, h, nsB)
	if part.Slots.index != old.Slots.index {
		t.Fatalf("place %d after %d", part.Slots.index, old.Slots.index)
	}
	if r, err := part.Slots.Get(1); err != nil || r.State != StateFree || r.Namespace != indexOf(t, h.arena, nsB) || part.Slots.Pins(1) != 0 {
		t.Errorf("record %+v, pins %#x, %v", r, part.Slots.Pins(1), err)
	}
	noError(t, h.Close([]HostExtent{part}, false))
}

// A kill after any step of Grow leaves the extents that were there, whole, and
// nothing else.
func TestKillDuringGrowLeavesNothingBehind(t *testing.T) {
	for steps := range 5 {
		dir := t.TempDir()
		h := openHost(t, hostConfig(dir))
		// The place that the new extent gets in the table had another owner.
		gone, kept := growHost(t, h, nsB), growHost(t, h, nsA)
		kept.Slots.Put(2, &Record{Key: kv.BlockKey{9}.InGroup(0), Generation: 5, State: StateSealed})
		h.Drop(gone)
		section, head, err := h.reserve(need{ns: indexOf(t, h.arena, nsA), slotBytes: testSlot})
		if err != nil || section != gone.Slots.index {
			t.Fatalf("place %d, %v", section, err)
		}
		parts := []HostExtent{kept}
		var ext *extent.Host
		if steps > 0 {
			if ext, err = extent.CreateHost(h.path(section, head.extent), h.geometry(&head)); err != nil {
				t.Fatal(err)
			}
			parts = append(parts, HostExtent{head.extent, ext, &Section{}})
		}
		if steps > 1 {
			slots, err := h.table.createSection(section, head)
			if err != nil {
				t.Fatal(err)
			}
			if steps == 2 {
				clear(slots.image[:PageSize]) // the head was not written yet
			}
			parts[1].Slots = slots
		}
		whole := 1
		if steps == 4 {
			noError(t, ext.Publish())
			whole = 2
		}
		h.Abandon(parts)

		h = openHost(t, hostConfig(dir))
		files, err := extentFiles(dir)
		if err != nil || len(files) != whole || !h.Warm() {
			t.Errorf("after %d steps: %v, warm %v, %v", steps, files, h.Warm(), err)
		}
		found := h.Claim(indexOf(t, h.arena, nsA))
		if len(found) != whole || found[0].ID != kept.ID {
			t.Fatalf("after %d steps: claimed %v", steps, found)
		}
		if r, err := found[0].Slots.Get(2); err != nil || r.State != StateSealed {
			t.Errorf("after %d steps: %+v, %v", steps, r, err)
		}
		if whole == 1 {
			found = append(found, growHost(t, h, nsA))
			if found[1].ID <= head.extent {
				t.Errorf("id %d was used again or given to a later extent: %d", head.extent, found[1].ID)
			}
		}
		noError(t, h.Close(found, false))
	}
}

func TestHostArenaThatDoesNotFitStartsCold(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(page []byte)
		why    string
	}{
		{"another boot", func(b []byte) { b[32] ^= 1 }, "host memory of boot"},
		{"older version", func(b []byte) { b[8] = 1 }, "version: 1, want 2"},
		{"another extent size", func(b []byte) { b[18]++ }, "extents of"},
		{"damaged session table", nil, "session table: entry 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			h := openHost(t, hostConfig(dir))
			part := growHost(t, h, nsA)
			copy(part.Extent.Slot(0), "kept")
			client, err := unix.Mmap(int(part.Extent.File().Fd()), 0, 2*PageSize, unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(client)
			if c.change == nil {
				h.Sessions().words[3*entryWords] = 0xff
			}
			noError(t, h.Close([]HostExtent{part}, true))
			if c.change != nil {
				rewriteHeader(t, filepath.Join(dir, tableName), c.change)
			}
			core, logs := observer.New(zap.WarnLevel)
			cfg := hostConfig(dir)
			cfg.Log = zap.New(core)
			h = openHost(t, cfg)
			said := slices.ContainsFunc(logs.All(), func(e observer.LoggedEntry) bool {
				why, _ := e.ContextMap()["error"].(string)
				return strings.Contains(why, c.why)
			})
			if h.Warm() || !said || len(h.Sessions().All()) != 0 {
				t.Errorf("warm %v, logged %v", h.Warm(), logs.All())
			}
			if files, err := extentFiles(dir); err != nil || len(files) != 0 {
				t.Errorf("extents %v are still there, %v", files, err)
			}
			if string(client[PageSize:PageSize+4]) != "kept" {
				t.Error("an engine lost the memory it maps")
			}
			next := growHost(t, h, nsA)
			if next.ID <= part.ID {
				t.Errorf("extent %d comes after %d", next.ID, part.ID)
			}
			noError(t, h.Close([]HostExtent{next}, false))
		})
	}
}

func TestRubbishInAHostDirectoryIsUnlinkedAndForeignFilesStay(t *testing.T) {
	dir := t.TempDir()
	noError(t, openHost(t, hostConfig(dir)).Close(nil, true))
	rubbish := []string{"extent-0000000a", "extent-00000001-00000002", "extent-00000001-00000003.new"}
	foreign := []string{"extent-notes.txt", "extent-0000000a.new", "extent-00000001-00000002.old", "notes"}
	for _, name := range slices.Concat(rubbish, foreign) {
		noError(t, os.WriteFile(filepath.Join(dir, name), []byte("old"), 0o600))
	}
	h := openHost(t, hostConfig(dir))
	defer h.Close(nil, true)
	if !h.Warm() {
		t.Error("rubbish made the arena cold")
	}
	for _, name := range rubbish {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range foreign {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if next := growHost(t, h, nsA); next.ID <= 0xa {
		t.Errorf("extent %d: an id that a file had", next.ID)
	}
}

func TestExtentIDsAreUsedOnceAcrossDropsAndRestarts(t *testing.T) {
	dir := t.TempDir()
	seen := map[uint32]bool{}
	note := func(id uint32) {
		t.Helper()
		if seen[id] {
			t.Errorf("id %d is used again", id)
		}
		seen[id] = true
	}
	for range 3 {
		h := openHost(t, hostConfig(filepath.Join(dir, "host")))
		d := openDisk(t, diskConfig(filepath.Join(dir, "disk")))
		for range 3 {
			part := growHost(t, h, nsA)
			note(part.ID)
			h.Drop(part)
		}
		part := growHost(t, h, nsA)
		note(part.ID)
		h.Abandon([]HostExtent{part})
		h = openHost(t, hostConfig(filepath.Join(dir, "host")))
		h.Drop(h.Claim(indexOf(t, h.arena, nsA))[0])
		noError(t, h.Close(nil, true))
		a := growDisk(t, d, nsA)
		d.Drop(a)
		b := growDisk(t, d, nsA)
		d.Drop(b)
		if a.ID == b.ID {
			t.Errorf("disk id %d is used again", a.ID)
		}
		noError(t, d.Close(nil))
	}
}

func TestHostExtentIsPopulatedMappedAndUnlinked(t *testing.T) {
	dir := t.TempDir()
	h := openHost(t, hostConfig(dir))
	part := growHost(t, h, nsA)
	geo := part.Extent.Geometry()
	if geo.Slots != 4 || geo.DataOffset != PageSize || geo.FileBytes() != PageSize+4*testSlot {
		t.Errorf("geometry %+v", geo)
	}
	st, err := part.Extent.File().Stat()
	if err != nil {
		t.Fatal(err)
	}
	if blocks := st.Sys().(*syscall.Stat_t).Blocks * statBlock; blocks < int64(geo.FileBytes()) {
		t.Errorf("%d bytes are allocated of %d", blocks, geo.FileBytes())
	}
	// What a client writes through the file is what the slot shows.
	if _, err := part.Extent.File().WriteAt([]byte("hello"), geo.Offset(3)); err != nil {
		t.Fatal(err)
	}
	if got := part.Extent.Slot(3)[:5]; string(got) != "hello" {
		t.Errorf("slot holds %q", got)
	}
	noError(t, part.Extent.SetGeneration(3, 0x0102030405060708))
	word := make([]byte, 8)
	if _, err := part.Extent.File().ReadAt(word, 3*8); err != nil || binary.LittleEndian.Uint64(word) != 0x0102030405060708 {
		t.Errorf("generation word %x, %v", word, err)
	}
	if got, err := part.Extent.Generation(3); err != nil || got != 0x0102030405060708 {
		t.Errorf("generation %#x, %v", got, err)
	}
	if err := part.Extent.SetGeneration(4, 1); err == nil {
		t.Error("a generation beyond the extent was set")
	}
	if _, err := part.Extent.Generation(4); err == nil {
		t.Error("a generation beyond the extent was read")
	}
	noError(t, h.Close([]HostExtent{part}, false))
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files are left", len(left))
	}
}

// A memory node that the machine lacks costs a log line, and no extent.
func TestExtentsOnNodesThatAreNotThereLieAnywhere(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	cfg := hostConfig(t.TempDir())
	cfg.Nodes, cfg.Log = []int{extent.MaxNode}, zap.New(core)
	h := openHost(t, cfg)
	ns := indexOf(t, h.arena, nsA)
	var extents []HostExtent
	for range 2 {
		e, err := h.Grow(ns, testSlot, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		extents = append(extents, e)
	}
	if got := logs.FilterMessage("host extents lie on any memory node").Len(); got != 1 {
		t.Errorf("%d log lines, want 1: %v", got, logs.All())
	}
	if err := h.Close(extents, false); err != nil {
		t.Error(err)
	}
}
