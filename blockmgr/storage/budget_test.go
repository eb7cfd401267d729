package storage

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// A tier of B bytes and one namespace has exactly B / slot bytes slots, however
// they are cut into extents.
func TestBudgetIsUsedToTheLastSlot(t *testing.T) {
	h := openHost(t, hostConfig(t.TempDir()))
	defer h.Close(nil, false)
	rapid.Check(t, func(t *rapid.T) {
		a := &arena{kind: kindHost, table: h.table, fs: h.fs, extents: map[uint32]extentEntry{}}
		a.cfg.Bytes = rapid.Uint64Range(PageSize, 1<<32).Draw(t, "bytes")
		a.budget.Store(a.cfg.Bytes)
		a.cfg.ExtentBytes = rapid.Uint64Range(PageSize, MaxExtentBytes).Draw(t, "extent bytes")
		slotBytes := PageSize * rapid.Uint64Range(max(1, a.cfg.Bytes/PageSize/2000), max(1, min(a.cfg.Bytes/PageSize, 1000))).Draw(t, "slot pages")
		n := need{slotBytes: slotBytes, minSlots: rapid.Uint64Range(0, 2).Draw(t, "min"), maxSlots: rapid.SampledFrom([]uint64{0, 2, 1000}).Draw(t, "max")}
		want := a.cfg.Bytes / slotBytes
		var slots uint64
		for {
			section, head, err := a.tryReserve(n)
			if err != nil {
				if want >= max(n.minSlots, 1) && !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				break
			}
			size := a.geometry(&head).FileBytes()
			if int(section) != len(a.extents)-1 || size > MaxExtentBytes || uint64(head.slots) < n.minSlots || n.maxSlots > 0 && uint64(head.slots) > n.maxSlots {
				t.Fatalf("extent %d: %+v in a file of %d bytes", section, head, size)
			}
			slots += uint64(head.slots)
		}
		if left := want - slots; left >= max(n.minSlots, 1) || slots > want {
			t.Fatalf("%d slots, want %d", slots, want)
		}
	})
}

func TestGrowRefusesWhatNoBudgetCanGive(t *testing.T) {
	h := openHost(t, hostConfig(t.TempDir()))
	defer h.Close(nil, false)
	ns := indexOf(t, h.arena, nsA)
	for _, c := range []struct {
		slotBytes, least, most uint64
		why                    string
	}{
		{testSlot, 9, 0, "too small, one extent needs at least 73728 bytes"},
		{testSlot, 3, 2, "at most 2 slots: want at least 3"},
		{testSlot, 1 << 20, 0, "want at most 64"},
		{2 * testSlot, 1, 0, "namespace 0 has 8192"},
	} {
		if _, err := h.Grow(ns, c.slotBytes, c.least, c.most); err == nil || errors.Is(err, ErrFull) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	part, err := h.Grow(ns, testSlot, 6, 7)
	if err != nil || part.Slots.Slots() != 6 {
		t.Fatalf("%v, %v", part, err)
	}
	if _, err := h.Grow(ns, testSlot, 3, 0); !errors.Is(err, ErrFull) {
		t.Errorf("three slots where two are left: %v", err)
	}
	rest, err := h.Grow(ns, testSlot, 1, 1)
	if err != nil || rest.Slots.Slots() != 1 {
		t.Fatalf("%v, %v", rest, err)
	}
	h.Drop(part)
	h.Drop(rest)
}

func TestUnclaimedExtentsYieldUnlessTheirNamespaceHasSessions(t *testing.T) {
	dir := t.TempDir()
	h := openHost(t, hostConfig(dir))
	parts := []HostExtent{growHost(t, h, nsA), growHost(t, h, nsB)}
	if _, err := h.Sessions().Begin(1, nsA); err != nil {
		t.Fatal(err)
	}
	h.Abandon(parts)

	h = openHost(t, hostConfig(dir))
	third := kv.NamespaceID{3}
	mine := []HostExtent{growHost(t, h, third)}
	if len(h.Claim(indexOf(t, h.arena, nsB))) != 0 {
		t.Error("the extent without sessions did not yield")
	}
	if _, err := h.Grow(indexOf(t, h.arena, third), testSlot, 1, 0); !errors.Is(err, ErrFull) {
		t.Errorf("an extent that a process may touch yielded: %v", err)
	}
	h.Sessions().End(1)
	mine = append(mine, growHost(t, h, third))
	if len(h.Claim(indexOf(t, h.arena, nsA))) != 0 {
		t.Error("the extent did not yield when its session had ended")
	}
	noError(t, h.Close(mine, false))
}

func TestSmallerHostBudgetKeepsWhatSessionsUse(t *testing.T) {
	dir := t.TempDir()
	h := openHost(t, hostConfig(dir))
	parts := []HostExtent{growHost(t, h, nsA), growHost(t, h, nsB)}
	if _, err := h.Sessions().Begin(1, nsB); err != nil {
		t.Fatal(err)
	}
	h.Abandon(parts)
	cfg := hostConfig(dir)
	cfg.Bytes = 2 * testSlot
	h = openHost(t, cfg)
	if a, b := h.Claim(indexOf(t, h.arena, nsA)), h.Claim(indexOf(t, h.arena, nsB)); len(a) != 0 || len(b) != 1 {
		t.Errorf("%d and %d extents", len(a), len(b))
	} else {
		h.Drop(b[0])
	}
	noError(t, h.Close(nil, false))
}

func TestBudgetIsKeptAndUnclaimedExtentsYield(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, diskConfig(dir))
	one, two := growDisk(t, d, nsA), growDisk(t, d, nsA)
	if _, err := d.Grow(0, testSlot, 1, 0); !errors.Is(err, ErrFull) {
		t.Errorf("third extent: %v", err)
	}
	parts := []DiskExtent{one, two}
	for _, p := range parts {
		noError(t, WritePages(p.Slots.TakeDirty(nil)))
	}
	noError(t, d.Close(parts))

	d = openDisk(t, diskConfig(dir))
	b := growDisk(t, d, nsB)
	files, err := extentFiles(dir)
	if err != nil || len(files) != 2 {
		t.Errorf("extents %v, %v", files, err)
	}
	ns := indexOf(t, d.arena, nsA)
	left := slices.Collect(d.Claim(ns))
	if len(left) != 1 {
		t.Errorf("%d extents of the first namespace are left, want 1", len(left))
	}
	noError(t, d.Close(append(left, b)))

	small := diskConfig(dir)
	small.Bytes = 4 * testSlot
	d = openDisk(t, small)
	if held := d.extents; len(held) != 1 {
		t.Errorf("%d extents in a budget of one", len(held))
	}
	d.Close(nil)
}

func TestDroppedDiskExtentReturnsToTheBudget(t *testing.T) {
	dir := t.TempDir()
	d := openDisk(t, diskConfig(dir))
	a, b := growDisk(t, d, nsA), growDisk(t, d, nsA)
	b.Slots.Put(0, &Record{Key: kv.BlockKey{9}.InGroup(0), Generation: 5, State: StateSealed})
	noError(t, WritePages(b.Slots.TakeDirty(nil)))
	ns := indexOf(t, d.arena, nsB)
	if _, err := d.Grow(ns, testSlot, 1, 0); !errors.Is(err, ErrFull) {
		t.Fatalf("a third extent: %v", err)
	}
	d.Drop(b)
	if _, err := os.Stat(b.Extent.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dropped extent: %v", err)
	}
	c := growDisk(t, d, nsB)
	// As in a crash, nothing more is written: the new extent must not come back
	// with the old one's records.
	noError(t, d.Close([]DiskExtent{a, c}))
	d = openDisk(t, diskConfig(dir))
	ns = indexOf(t, d.arena, nsB)
	parts := slices.Collect(d.Claim(ns))
	if len(parts) != 1 {
		t.Fatalf("%d extents of the newcomer", len(parts))
	}
	if r, err := parts[0].Slots.Get(0); err != nil || r.State != StateFree {
		t.Errorf("record %+v, %v", r, err)
	}
	noError(t, d.Close(parts))
}
