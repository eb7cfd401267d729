package storagetest

import (
	"bytes"
	"errors"
	"math"
	"math/bits"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
)

const testSlot = 2 * extent.PageSize

var testGeometry = extent.Geometry{Slots: 4, SlotBytes: testSlot}

// faultyExtent is an extent whose next operation of any kind meets *fault.
func faultyExtent(t *testing.T, fault *Fault, gate *Gate) (*extent.Disk, *Faulty) {
	t.Helper()
	var faulty *Faulty
	ext, err := extent.CreateDisk(filepath.Join(t.TempDir(), "x"), testGeometry, extent.DiskOptions{Wrap: func(_ string, f extent.File) extent.File {
		faulty = &Faulty{File: f, Gate: gate, Plan: func(Op, int) Fault {
			now := *fault
			*fault = FaultNone
			return now
		}}
		return faulty
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ext.Close() })
	return ext, faulty
}

func filled(b byte) []byte {
	p := extent.AlignedBytes(testSlot)
	for i := range p {
		p[i] = b
	}
	return p
}

func differingBits(a, b []byte) (n int) {
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return n
}

func TestWriteFaultsDoWhatTheySay(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		err   error
		// old is how many bytes at the end still are the old ones.
		old, flips int
	}{
		{FaultNone, nil, 0, 0},
		{FaultEIO, unix.EIO, testSlot, 0},
		{FaultENOSPC, unix.ENOSPC, testSlot, 0},
		{FaultShort, errors.New("short write"), testSlot / 2, 0},
		{FaultTorn, nil, testSlot / 2, 0},
		{FaultLost, nil, testSlot, 0},
		{FaultFlip, nil, 0, 1},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			fault := FaultNone
			ext, faulty := faultyExtent(t, &fault, nil)
			before, after := filled(0x55), filled(0x33)
			noError(t, ext.WriteSlot(1, before, extent.Life{}))
			fault = c.fault
			err := ext.WriteSlot(1, after, extent.Life{})
			if (err == nil) != (c.err == nil) || err != nil && !strings.Contains(err.Error(), c.err.Error()) {
				t.Errorf("got %v, want %v", err, c.err)
			}
			got, want := extent.AlignedBytes(testSlot), bytes.Clone(after)
			copy(want[testSlot-c.old:], before)
			if err := ext.ReadSlot(1, got, extent.Life{}); err != nil || differingBits(got, want) != c.flips {
				t.Errorf("%d bits differ, want %d; %v", differingBits(got, want), c.flips, err)
			}
			if !bytes.Equal(after, filled(0x33)) {
				t.Error("the caller's buffer was changed")
			}
			if n := faulty.Injected(OpWrite, c.fault); n < 1 {
				t.Errorf("%d injected", n)
			}
		})
	}
}

func TestReadFaultsDoWhatTheySay(t *testing.T) {
	fault := FaultNone
	ext, _ := faultyExtent(t, &fault, nil)
	want, got := filled(0x55), extent.AlignedBytes(testSlot)
	noError(t, ext.WriteSlot(1, want, extent.Life{}))
	fault = FaultEIO
	if err := ext.ReadSlot(1, got, extent.Life{}); !errors.Is(err, unix.EIO) {
		t.Errorf("EIO: %v", err)
	}
	fault = FaultShort
	if err := ext.ReadSlot(1, got, extent.Life{}); err == nil {
		t.Error("a short read passed")
	}
	fault = FaultTorn
	if err := ext.ReadSlot(1, got, extent.Life{}); err != nil || bytes.Equal(got, want) || !bytes.Equal(got[:testSlot/2], want[:testSlot/2]) {
		t.Errorf("torn: %v", err)
	}
	fault = FaultFlip
	if err := ext.ReadSlot(1, got, extent.Life{}); err != nil || differingBits(got, want) != 1 {
		t.Errorf("flip: %d bits, %v", differingBits(got, want), err)
	}
	if err := ext.ReadSlot(1, got, extent.Life{}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("afterwards: %v", err)
	}
}

func TestSyncFaults(t *testing.T) {
	power := NewPowerLoss()
	defer power.Close()
	fault := FaultNone
	ext, err := extent.CreateDisk(filepath.Join(t.TempDir(), "x"), testGeometry, extent.DiskOptions{Wrap: func(path string, f extent.File) extent.File {
		return &Faulty{File: power.Wrap(path, f), Plan: func(Op, int) Fault { return fault }}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer ext.Close()
	noError(t, ext.WriteSlot(0, filled(1), extent.Life{}))
	fault = FaultEIO
	if err := ext.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("EIO: %v", err)
	}
	fault = FaultLost
	if err := ext.Sync(); err != nil || power.held == 0 {
		t.Errorf("a lost sync: %v, %d bytes held", err, power.held)
	}
	fault = FaultNone
	if err := ext.Sync(); err != nil || power.held != 0 {
		t.Errorf("a real sync: %v, %d bytes held", err, power.held)
	}
}

// memFile is a File in memory that holds nothing.
type memFile struct{ extent.File }

func (memFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func TestStalledOperationsWaitForTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := new(Gate)
		f := &Faulty{File: memFile{}, Gate: gate, Plan: func(Op, int) Fault { return FaultStall }}
		through := make(chan int, 4)
		write := func() {
			n, err := f.WriteAt(make([]byte, 8), 0)
			if err != nil {
				t.Error(err)
			}
			through <- n
		}
		go write()
		go write()
		synctest.Wait()
		if gate.Waiting() != 2 || len(through) != 0 {
			t.Fatalf("%d wait, %d are through", gate.Waiting(), len(through))
		}
		gate.Release()
		synctest.Wait()
		go write()
		synctest.Wait()
		if gate.Waiting() != 1 || len(through) != 2 {
			t.Fatalf("after a release %d wait, %d are through", gate.Waiting(), len(through))
		}
		gate.Open()
		go write()
		synctest.Wait()
		if gate.Waiting() != 0 || len(through) != 4 {
			t.Fatalf("with the gate open %d wait, %d are through", gate.Waiting(), len(through))
		}
	})
}

func TestRandomPlanDependsOnSeedOperationAndNumberAlone(t *testing.T) {
	rates := FaultRates{OpWrite: {FaultTorn: 0.2, FaultLost: 0.1}, OpRead: {FaultEIO: 1}}
	plan, err := RandomPlan(7, rates)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := RandomPlan(7, rates)
	other, _ := RandomPlan(8, rates)
	counts, differ := map[Fault]int{}, 0
	const n = 10_000
	for i := range n {
		got := plan(OpWrite, i)
		if got != again(OpWrite, i) {
			t.Fatalf("write %d: the same seed decides differently", i)
		}
		if got != other(OpWrite, i) {
			differ++
		}
		counts[got]++
		if plan(OpRead, i) != FaultEIO || plan(OpSync, i) != FaultNone {
			t.Fatal("rates 1 and 0 are not kept")
		}
	}
	for fault, rate := range map[Fault]float64{FaultTorn: 0.2, FaultLost: 0.1, FaultNone: 0.7} {
		if got := float64(counts[fault]) / n; math.Abs(got-rate) > 0.03 {
			t.Errorf("%s: %v of the writes, want %v", fault, got, rate)
		}
	}
	if differ == 0 {
		t.Error("two seeds decide alike")
	}
}

func TestFaultRatesOutOfRangeAreRefused(t *testing.T) {
	for _, c := range []struct {
		rates FaultRates
		want  string
	}{
		{FaultRates{OpWrite: {FaultEIO: -0.1}}, "want 0 to 1"},
		{FaultRates{OpWrite: {FaultEIO: math.NaN()}}, "want 0 to 1"},
		{FaultRates{OpWrite: {FaultEIO: 0.7, FaultTorn: 0.7}}, "want at most 1"},
		{FaultRates{OpRead: {FaultEIO: 0.1, FaultLost: 0.1}}, "lost means nothing for read"},
		{FaultRates{OpSync: {Fault(200): 0.1}}, "means nothing"},
		{FaultRates{Op(9): {FaultEIO: 0.1}}, "operation 9"},
	} {
		if _, err := RandomPlan(1, c.rates); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.rates, err, c.want)
		}
	}
}
