package blockmgr

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

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
	tripBreaker(t, &p.broker.health.All)
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
	tripBreaker(t, &p.broker.health.All)
	p.retryDisk()
	res, err := p.Grant(p.sid, blocks, 0)
	if err != nil || len(res.Grants) != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if got := p.broker.health.All.UntilTry(); got != 0 {
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
		for range diskio.BreakerFailures {
			p.broker.health.All.Failed(storage.ErrForeign)
		}
		p.store(chain(5, 2))
		time.Sleep(2 * diskio.BreakerPause)
		synctest.Wait()
		p.quiesce()
		if st := p.Stats(); st.DiskOpen || st.WriteBehind != 4 {
			t.Errorf("disk left alone: %v, %d of 4 blocks written", st.DiskOpen, st.WriteBehind)
		}
	})
}
