package storagetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

// tempFile makes a file of zeros, through the page cache, that power wraps.
func tempFile(t *testing.T, power *PowerLoss, size int64) (path string, f extent.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x")
	raw, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	noError(t, raw.Truncate(size))
	t.Cleanup(func() { raw.Close() })
	return path, power.Wrap(path, extent.NewFile(raw))
}

func testRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// After a loss every sector holds a content that it had since the last sync,
// and what was synced is there, whatever was written, wherever it began.
func TestAfterAPowerLossEverySectorHoldsOneOfItsVersions(t *testing.T) {
	const size = 8 * SectorSize
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		power := NewPowerLoss()
		path := filepath.Join(dir, fmt.Sprint(rapid.Uint64().Draw(t, "name")))
		raw, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		defer raw.Close()
		f := power.Wrap(path, extent.NewFile(raw))

		now := make([]byte, size)
		versions := make([][][]byte, size/SectorSize)
		sync := func(do func() error) {
			noError(t, do())
			for s := range versions {
				versions[s] = [][]byte{bytes.Clone(now[s*SectorSize : (s+1)*SectorSize])}
			}
		}
		sync(func() error { return f.Allocate(size) })
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				off := rapid.IntRange(0, size-1).Draw(t, "off")
				p := rapid.SliceOfN(rapid.Byte(), 1, size-off).Draw(t, "bytes")
				if _, err := f.WriteAt(p, int64(off)); err != nil {
					t.Fatal(err)
				}
				copy(now[off:], p)
				for s := off / SectorSize; s*SectorSize < off+len(p); s++ {
					versions[s] = append(versions[s], bytes.Clone(now[s*SectorSize:(s+1)*SectorSize]))
				}
			},
			"sync": func(*rapid.T) { sync(f.Sync) },
			"reopen": func(t *rapid.T) {
				noError(t, f.Close())
				if raw, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
					t.Fatal(err)
				}
				f = power.Wrap(path, extent.NewFile(raw))
			},
			"": func(t *rapid.T) {
				got := make([]byte, size)
				if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, now) {
					t.Fatalf("before any loss the file differs, %v", err)
				}
			},
		})
		report, err := power.Lose(testRand(rapid.Uint64().Draw(t, "seed")))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || len(got) != size || report.Settled != 0 || report.Shortened != 0 {
			t.Fatalf("%d bytes, %+v, %v", len(got), report, err)
		}
		for s := range versions {
			if !slices.ContainsFunc(versions[s], func(v []byte) bool { return bytes.Equal(v, got[s*SectorSize:(s+1)*SectorSize]) }) {
				t.Errorf("sector %d holds none of its %d versions", s, len(versions[s]))
			}
		}
	})
}

// stampSlot is a slot every sector of which says who wrote it.
func stampSlot(serial uint64) []byte {
	p := extent.AlignedBytes(testSlot)
	for off := 0; off < len(p); off += 8 {
		binary.LittleEndian.PutUint64(p[off:], serial)
	}
	return p
}

// Real extents with O_DIRECT: unsynced slots are lost whole, kept whole and
// torn, and slots synced before are as they were.
func TestPowerLossTearsUnsyncedSlotsAndKeepsSyncedOnes(t *testing.T) {
	const slots = 256
	power := NewPowerLoss()
	path := filepath.Join(t.TempDir(), "x")
	geo, o := extent.Geometry{Slots: slots, SlotBytes: testSlot}, extent.DiskOptions{Wrap: power.Wrap}
	ext, err := extent.CreateDisk(path, geo, o)
	if err != nil {
		t.Fatal(err)
	}
	write := func(i uint32, serial uint64) {
		t.Helper()
		noError(t, ext.WriteSlot(i, stampSlot(serial), extent.Life{}))
	}
	for i := range uint32(slots) {
		write(i, 1)
	}
	noError(t, ext.Sync())
	for i := range uint32(slots / 2) {
		write(i, 2)
	}
	noError(t, ext.Close())
	report, err := power.Lose(testRand(1))
	if err != nil {
		t.Fatal(err)
	}
	if ext, err = extent.OpenDisk(path, geo, o); err != nil {
		t.Fatal(err)
	}
	defer power.Close()
	defer ext.Close()
	var kept, dropped, torn int
	for i := range uint32(slots) {
		got := extent.AlignedBytes(testSlot)
		noError(t, ext.ReadSlot(i, got, extent.Life{}))
		old, new := bytes.Equal(got, stampSlot(1)), bytes.Equal(got, stampSlot(2))
		switch {
		case i >= slots/2 && !old:
			t.Errorf("synced slot %d has changed", i)
		case i >= slots/2:
		case new:
			kept++
		case old:
			dropped++
		default:
			torn++
		}
	}
	want := LossReport{Sectors: slots / 2 * testSlot / SectorSize, Kept: kept, Dropped: dropped, Torn: torn}
	if report != want || kept < 10 || dropped < 10 || torn < 10 {
		t.Errorf("report %+v, found %+v", report, want)
	}
	t.Logf("O_DIRECT refused: %q, %+v", ext.DirectRefusal(), report)
}

func TestPowerLossIsTheSameForTheSameSeed(t *testing.T) {
	lose := func(seed uint64) []byte {
		power := NewPowerLoss()
		path, f := tempFile(t, power, 64*SectorSize)
		for i := range 8 {
			if _, err := f.WriteAt(stampSlot(uint64(i)), int64(i)*3*SectorSize); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := power.Lose(testRand(seed)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if !bytes.Equal(lose(3), lose(3)) {
		t.Error("one seed gave two losses")
	}
	if bytes.Equal(lose(3), lose(4)) {
		t.Error("two seeds gave one loss")
	}
}

func TestFilesOpenDuringALossAreUselessAndNewOnesStartAfresh(t *testing.T) {
	power := NewPowerLoss()
	path, f := tempFile(t, power, SectorSize)
	if _, err := power.Lose(testRand(1)); err != nil {
		t.Fatal(err)
	}
	_, werr := f.WriteAt([]byte{1}, 0)
	_, rerr := f.ReadAt(make([]byte, 1), 0)
	for _, err := range []error{werr, rerr, f.Sync(), f.Allocate(1)} {
		if !errors.Is(err, ErrPowerLost) {
			t.Errorf("after the loss: %v", err)
		}
	}
	raw, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	again := power.Wrap(path, extent.NewFile(raw))
	if _, err := again.WriteAt([]byte{1}, 0); err != nil {
		t.Errorf("after a new start: %v", err)
	}
	if err := errors.Join(again.Close(), power.Close()); err != nil {
		t.Error(err)
	}
}

func TestGrowthSinceTheLastSyncMayBeLost(t *testing.T) {
	shortened, full := 0, 0
	for seed := range uint64(40) {
		power := NewPowerLoss()
		path, f := tempFile(t, power, SectorSize)
		if _, err := f.WriteAt(stampSlot(1), extent.PageSize); err != nil {
			t.Fatal(err)
		}
		report, err := power.Lose(testRand(seed))
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil || st.Size() < SectorSize || st.Size() > extent.PageSize+testSlot {
			t.Fatalf("seed %d: %+v, %v", seed, st, err)
		}
		if st.Size() == SectorSize {
			shortened++
		} else if st.Size() == extent.PageSize+testSlot {
			full++
		}
		if report.Shortened == 0 && st.Size() != extent.PageSize+testSlot {
			t.Errorf("seed %d: %d bytes, %+v", seed, st.Size(), report)
		}
	}
	if shortened == 0 || full == 0 {
		t.Errorf("%d files lost all they grew by, %d nothing", shortened, full)
	}
}

func TestWhatWasCutOffDoesNotComeBack(t *testing.T) {
	for seed := range uint64(10) {
		power := NewPowerLoss()
		path, f := tempFile(t, power, testSlot)
		if _, err := f.WriteAt(stampSlot(1), 0); err != nil {
			t.Fatal(err)
		}
		noError(t, os.Truncate(path, SectorSize))
		if _, err := power.Lose(testRand(seed)); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Size() != SectorSize {
			t.Errorf("seed %d: %+v, %v", seed, st, err)
		}
	}
}

func TestOldestWriteIsTakenForSyncedBeyondTheBound(t *testing.T) {
	power := NewPowerLoss()
	power.MaxBytes = 8 * SectorSize
	path, f := tempFile(t, power, 16*SectorSize)
	const writes = 40
	for i := range uint64(writes) {
		p := bytes.Repeat([]byte{byte(i + 1)}, SectorSize)
		if _, err := f.WriteAt(p, int64(i%16)*SectorSize); err != nil {
			t.Fatal(err)
		}
		if power.held > power.MaxBytes {
			t.Fatalf("%d bytes are held, want at most %d", power.held, power.MaxBytes)
		}
	}
	report, err := power.Lose(testRand(1))
	if err != nil || report.Sectors != 4 || report.Settled != writes-4 || power.held != 0 {
		t.Errorf("%+v, %d bytes held, %v", report, power.held, err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Sectors 4 to 7 were written last; the others are settled at their newest.
	for s := range 16 {
		newest := byte(s + 33)
		if s >= 8 {
			newest = byte(s + 17)
		}
		if old := newest - 16; got[s*SectorSize] != newest && (s < 4 || s >= 8 || got[s*SectorSize] != old) {
			t.Errorf("sector %d holds %d, want %d", s, got[s*SectorSize], newest)
		}
	}
}

func TestRemovedAndReplacedFilesHaveNoPast(t *testing.T) {
	power := NewPowerLoss()
	path, f := tempFile(t, power, 0)
	if _, err := f.WriteAt(stampSlot(1), 0); err != nil {
		t.Fatal(err)
	}
	noError(t, errors.Join(f.Close(), os.Remove(path)))
	raw, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	second := power.Wrap(path, extent.NewFile(raw))
	if power.held != 0 || len(power.order) != 1 {
		t.Errorf("%d bytes are held of %d files", power.held, len(power.order))
	}
	noError(t, second.Allocate(testSlot))
	noError(t, os.Rename(path, path+".new"))
	if _, err := second.WriteAt(stampSlot(2), 0); err != nil {
		t.Fatal(err)
	}
	if report, err := power.Lose(testRand(1)); err != nil || report.Sectors != testSlot/SectorSize {
		t.Errorf("a renamed file: %+v, %v", report, err)
	}
}

func TestFileThatCannotBeFollowedIsOfNoUse(t *testing.T) {
	power := NewPowerLoss()
	f := power.Wrap(filepath.Join(t.TempDir(), "none"), memFile{})
	_, rerr := f.ReadAt(nil, 0)
	_, werr := f.WriteAt(nil, 0)
	for _, err := range []error{rerr, werr, f.Sync(), f.Allocate(1)} {
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	}
}

func TestPowerLossTakesConcurrentWritesAndSyncs(t *testing.T) {
	const writers, rounds = 8, 50
	power := NewPowerLoss()
	power.MaxBytes = 32 * testSlot
	path, f := tempFile(t, power, writers*testSlot)
	var group sync.WaitGroup
	for w := range int64(writers) {
		group.Go(func() {
			for i := range uint64(rounds) {
				if _, err := f.WriteAt(stampSlot(i), w*testSlot); err != nil {
					t.Error(err)
				}
				if i%8 == uint64(w) {
					if err := f.Sync(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
	noError(t, f.Sync())
	if report, err := power.Lose(testRand(1)); err != nil || report.Sectors != 0 || power.held != 0 {
		t.Errorf("%+v, %d bytes held, %v", report, power.held, err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, bytes.Repeat(stampSlot(rounds-1), writers)) {
		t.Errorf("synced data has changed, %v", err)
	}
}
