package blockmgr

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// trip fails as often as it takes to open a breaker.
func (b *breaker) trip(t *testing.T) {
	t.Helper()
	for range breakerFailures {
		b.failed(unix.EIO)
	}
	if open, _ := b.state(); !open || b.allow() {
		t.Fatal("the breaker did not open")
	}
}

func TestBreakerOpensOnlyAfterFailuresInARow(t *testing.T) {
	b := &breaker{log: zap.NewNop()}
	for range 3 {
		for range breakerFailures - 1 {
			b.failed(unix.EIO)
		}
		b.succeeded()
	}
	if open, trips := b.state(); open || trips != 0 || !b.allow() || b.untilTry() != 0 {
		t.Errorf("open %v, %d trips", open, trips)
	}
	b.trip(t)
	if _, trips := b.state(); trips != 1 {
		t.Errorf("%d trips", trips)
	}
}

func TestBreakerOpensAtOnceForAStall(t *testing.T) {
	b := &breaker{log: zap.NewNop()}
	b.stalled()
	b.stalled()
	if open, trips := b.state(); !open || trips != 1 || b.allow() {
		t.Errorf("open %v, %d trips", open, trips)
	}
}

func TestBreakerLetsOneTryThroughInEachPauseAndPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &breaker{log: zap.NewNop()}
		b.trip(t)
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			pause *= time.Second
			if got := b.untilTry(); got != pause {
				t.Errorf("%v until the next try, want %v", got, pause)
			}
			time.Sleep(pause - 1)
			if b.allow() {
				t.Error("a try before its time")
			}
			time.Sleep(1)
			if !b.allow() || b.allow() {
				t.Error("want one try and no second one")
			}
			// All operations of the try fail; they are one failure.
			for range 64 {
				b.failed(unix.EIO)
			}
			b.stalled()
		}
		time.Sleep(b.untilTry())
		if !b.allow() {
			t.Error("no try")
		}
		b.succeeded()
		if open, trips := b.state(); open || trips != 1 || !b.allow() || !b.allow() {
			t.Errorf("open %v, %d trips after a success", open, trips)
		}
		b.trip(t)
		if got := b.untilTry(); got != breakerPause {
			t.Errorf("%v until the next try of another failure", got)
		}
	})
}

func TestTryThatNeverEndsDoesNotKeepOthersFromTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &breaker{log: zap.NewNop()}
		b.trip(t)
		for range 3 {
			time.Sleep(breakerPause)
			if !b.allow() {
				t.Error("no try")
			}
		}
	})
}

func TestBlocksThatWaitForAFailingDiskCanBeEvictedAndAreWrittenWhenItIsBack(t *testing.T) {
	var armed atomic.Bool
	p := diskPool(t, func(cfg *Config) {
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpWrite && armed.Load() {
				return storagetest.FaultEIO
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	armed.Store(true)
	p.store(chain(1, 8))
	waitFor(t, func() bool { st := p.Stats(); return st.DiskOpen && st.WriteQueue == 0 && st.Host.Active == 0 })
	p.leaveDiskAlone()
	p.quiesce()
	failed := p.Stats().WriteErrors
	for seed := range uint64(4) {
		if n := p.store(chain(10+seed, 8)); n != 8 {
			t.Errorf("%d blocks granted while the disk fails", n)
		}
		p.quiesce()
	}
	if st := p.Stats(); st.WriteErrors != failed || st.DiskTrips != 1 || st.WriteBehind != 0 {
		t.Errorf("%+v", st)
	}
	p.check()
	armed.Store(false)
	p.retryDisk()
	waitFor(t, func() bool { return p.tiersOf(chain(13, 8)) == "BBBBBBBB" })
	p.quiesce()
	if st := p.Stats(); st.DiskOpen || st.WriteBehind != 8 {
		t.Errorf("%+v", st)
	}
}

func TestBlocksStoredWhileTheDiskIsLeftAloneDoNotWaitForIt(t *testing.T) {
	p := diskPool(t, nil)
	p.broker.breaker.trip(t)
	p.leaveDiskAlone()
	blocks := chain(1, 3)
	p.store(blocks)
	waitFor(t, func() bool { st := p.Stats(); return st.SealQueue+st.WriteQueue+st.Host.Active == 0 })
	if !p.Idle() || p.tiersOf(blocks) != "HHH" {
		t.Errorf("idle %v, resident %q", p.Idle(), p.tiersOf(blocks))
	}
	p.check()
	p.retryDisk()
	waitFor(t, func() bool { return p.tiersOf(blocks) == "BBB" })
	p.quiesce()
}

// Blocks that are only on a disk that is left alone may be stored again.
func TestGrantDoesNotCountOnADiskThatIsLeftAloneAndTakesNoTry(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 2)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	p.broker.breaker.trip(t)
	p.retryDisk()
	res, err := p.Grant(p.sid, blocks, 0)
	if err != nil || len(res.Grants) != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if got := p.broker.breaker.untilTry(); got != 0 {
		t.Errorf("a grant took the try: %v until the next one", got)
	}
	if err := p.Abort(p.sid, []Slot{res.Grants[0].Slot, res.Grants[1].Slot}); err != nil {
		t.Error(err)
	}
	// One block: a second read would race with the end of the try.
	if got := sources(p.find(blocks[:1])); got != "D" {
		t.Errorf("found %q by the lookup that tries", got)
	}
	if got := sources(p.find(blocks)); got != "HD" {
		t.Errorf("found %q after that", got)
	}
}

func TestIdleWriteBehindTriesAFailingDiskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: hostBytes(8), DiskBytes: 64 * testSlotBytes})
		p.store(chain(1, 2))
		p.quiesce()
		synctest.Wait() // nobody has anything to write
		for range breakerFailures {
			p.broker.breaker.failed(storage.ErrForeign)
		}
		p.store(chain(5, 2))
		time.Sleep(2 * breakerPause)
		synctest.Wait()
		p.quiesce()
		if st := p.Stats(); st.DiskOpen || st.WriteBehind != 4 {
			t.Errorf("disk left alone: %v, %d of 4 blocks written", st.DiskOpen, st.WriteBehind)
		}
	})
}
