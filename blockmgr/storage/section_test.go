package storage

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// writeLog is a File that notes where it is written, and fails if told so.
type writeLog struct {
	extent.File
	writes []int
	err    error
}

func (w *writeLog) WriteAt(p []byte, off int64) (int, error) {
	w.writes = append(w.writes, len(p)/PageSize)
	if w.err != nil {
		return 0, w.err
	}
	return w.File.WriteAt(p, off)
}

func openLogged(t *testing.T) (*DiskArena, *writeLog) {
	t.Helper()
	log := &writeLog{}
	cfg := ArenaConfig{Dir: t.TempDir(), Bytes: 1 << 23, ExtentBytes: 1 << 23, Log: diskConfig("").Log}
	cfg.Disk.Wrap = func(_ string, f extent.File) extent.File {
		if log.File != nil {
			return f
		}
		log.File = f // the table comes first
		return log
	}
	d := openDisk(t, cfg)
	return d, log
}

func TestNeighbouringPagesAreWrittenTogether(t *testing.T) {
	d, log := openLogged(t)
	part := growDisk(t, d, nsA)
	defer d.Close([]DiskExtent{part})
	const perPage = PageSize / RecordSize
	rapid.Check(t, func(t *rapid.T) {
		pages := rapid.SliceOfDistinct(rapid.IntRange(0, int(part.Slots.Slots())/perPage-1), rapid.ID).Draw(t, "pages")
		for _, p := range pages {
			part.Slots.Put(uint32(p*perPage+rapid.IntRange(0, perPage-1).Draw(t, "record")), &Record{Generation: rapid.Uint64().Draw(t, "generation")})
		}
		slices.Sort(pages)
		runs := 0
		for i, p := range pages {
			if i == 0 || p != pages[i-1]+1 {
				runs++
			}
		}
		taken := part.Slots.TakeDirty(nil)
		got := make([]int, 0, len(taken))
		for i := range taken {
			got = append(got, int(taken[i].index)-1)
		}
		if !slices.Equal(got, pages) {
			t.Fatalf("taken %v, want %v", got, pages)
		}
		log.writes = nil
		noError(t, WritePages(taken))
		if len(log.writes) != runs {
			t.Fatalf("%v: writes of %v pages", pages, log.writes)
		}
		again, err := d.table.openSection(part.Slots.index, part.Slots.head)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.image, part.Slots.image) {
			t.Fatal("the file has other records")
		}
		noError(t, again.close())
	})
}

func TestPagesThatCouldNotBeWrittenBecomeDirtyAgain(t *testing.T) {
	d, log := openLogged(t)
	part := growDisk(t, d, nsA)
	defer d.Close([]DiskExtent{part})
	for i := range part.Slots.Slots() {
		part.Slots.Put(i, &Record{Generation: 2})
	}
	pages := part.Slots.TakeDirty(nil)
	log.err = unix.EIO
	if err := WritePages(pages); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v", err)
	}
	Redirty(pages)
	if again := part.Slots.TakeDirty(nil); len(again) != len(pages) || len(again) == 0 {
		t.Errorf("%d pages are dirty, want %d", len(again), len(pages))
	}
}

func TestDirtyPagesAreTakenSomeAtATime(t *testing.T) {
	const pages = 200
	s := &Section{image: make([]byte, pages*PageSize), dirtyPages: make([]uint64, pages/64+1), agedPages: make([]uint64, pages/64+1)}
	for i := range uint32(pages) {
		if i != 70 {
			s.markDirty(i)
		}
	}
	var taken []uint32
	for from, more := uint32(0), true; more; {
		var some []Page
		if some, from, more = s.TakeSomeDirty(nil, from, 1); len(some) > 64 {
			t.Errorf("%d pages at once, want 64 at most", len(some))
		}
		s.markDirty(0) // what changes behind is for the next time
		for i := range some {
			taken = append(taken, some[i].index)
		}
	}
	if !slices.IsSorted(taken) || len(taken) != pages-1 || slices.Contains(taken, 70) {
		t.Errorf("pages %d are taken, want all of %d but 70", taken, pages)
	}
	if again := s.TakeDirty(nil); len(again) != 1 || again[0].index != 0 {
		t.Errorf("%d pages changed meanwhile, want 1", len(again))
	}
}

func TestNewDiskSectionThatCannotBeWrittenMakesNoExtent(t *testing.T) {
	d, log := openLogged(t)
	ns := indexOf(t, d.arena, nsA)
	log.err = unix.ENOSPC
	if _, err := d.Grow(ns, testSlot, 1, 0); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	log.err = nil
	part := growDisk(t, d, nsA)
	if part.Slots.Slots() != 1<<23/testSlot {
		t.Errorf("%d slots: the failed extent kept its part of the budget", part.Slots.Slots())
	}
	noError(t, d.Close([]DiskExtent{part}))
}
