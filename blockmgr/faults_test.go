package blockmgr

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// refusal answers writes to files with an error while it is set: those at one offset, or all.
type refusal struct {
	err atomic.Pointer[error]
	at  atomic.Int64
	// table refuses writes to the slot table too.
	table bool
}

func newRefusal(table bool) *refusal {
	r := &refusal{table: table}
	r.at.Store(-1)
	return r
}

// set sets the error. nil: writes are no longer refused.
func (r *refusal) set(err error) {
	if err == nil {
		r.err.Store(nil)
		return
	}
	r.err.Store(&err)
}

// wrap is Config.WrapDisk.
func (r *refusal) wrap(path string, f extent.File) extent.File {
	if filepath.Base(path) == "slots.table" && !r.table {
		return f
	}
	return refuser{f, r}
}

type refuser struct {
	extent.File
	*refusal
}

func (r refuser) WriteAt(p []byte, off int64) (int, error) {
	if err := r.err.Load(); err != nil && (r.at.Load() < 0 || r.at.Load() == off) {
		return 0, *err
	}
	return r.File.WriteAt(p, off)
}

// refusingPool is a pool with a full disk tier, and what refuses writes to its
// extents, or to its slot table too.
func refusingPool(t *testing.T, table bool) (p *testPool, refuse func(error), at *atomic.Int64) {
	r := newRefusal(table)
	p = newTestPool(t, Config{
		HostBytes: hostBytes(64), DiskBytes: 128 * testSlotBytes, ExtentBytes: 32 * testSlotBytes,
		Transfers: 1, TransferBatch: 4, WrapDisk: r.wrap,
	})
	for seed := range uint64(8) {
		p.store(chain(1+seed, 16))
		p.quiesce()
	}
	if st := p.Stats().Disk; st.Free != 0 || st.Inactive != 128 {
		t.Fatalf("the disk tier is not full: %+v", st)
	}
	return p, r.set, &r.at
}

// A disk that refuses writes costs the blocks of the batches that were under way and
// those of the slots that are tried, not more of them with each try, and no slot.
func TestDiskThatRefusesWritesKeepsItsBlocksAndSlots(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		table bool
	}{
		"EIO of extents": {unix.EIO, false}, "EIO of everything": {unix.EIO, true}, "EROFS": {unix.EROFS, true},
		"ENOSPC": {unix.ENOSPC, false}, "EDQUOT": {unix.EDQUOT, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, refuse, _ := refusingPool(t, c.table)
				before := p.Stats()
				refuse(c.err)
				for seed := range uint64(100) {
					p.store(chain(100+seed, 8))
					time.Sleep(5 * time.Second)
					p.find(chain(8, 4)) // reads work all the while
					p.resetHost(chain(8, 4))
				}
				st := p.Stats()
				if gone := st.DiskEvictions - before.DiskEvictions; gone > triedSlots {
					t.Errorf("%d good blocks were evicted for writes that failed, want at most %d", gone, triedSlots)
				}
				if st.Disk.Quarantined >= triedSlots {
					t.Errorf("%d good slots in quarantine, want fewer than %d", st.Disk.Quarantined, triedSlots)
				}
				full := diskio.IsFull(c.err)
				if st.DiskOpen == full || st.DiskReadOnly == full || st.ReadErrors != 0 || st.CorruptReads != 0 {
					t.Errorf("%+v", st)
				}
				refuse(nil)
				blocks := chain(500, 8)
				p.store(blocks)
				time.Sleep(2 * diskio.BreakerPauseMax)
				p.quiesce()
				if got := p.tiersOf(blocks); got != "BBBBBBBB" {
					t.Errorf("resident %q after the disk has recovered", got)
				}
				if st := p.Stats().Disk; st.Quarantined != 0 || st.Free != 0 {
					t.Errorf("after the disk has recovered: %+v", st)
				}
				p.check()
			})
		})
	}
}

// One slot that fails while its neighbours work ends in quarantine, and nothing else
// does.
func TestSlotThatFailsWhileItsNeighboursWorkIsQuarantined(t *testing.T) {
	synctest.Test(t, slotThatFails)
}

func slotThatFails(t *testing.T) {
	p, refuse, at := refusingPool(t, false)
	at.Store(5 * testSlotBytes) // of each extent
	refuse(unix.EIO)
	for seed := range uint64(60) {
		p.store(chain(100+seed, 8))
		p.quiesce()
		time.Sleep(suspectTime / 2)
	}
	st := p.Stats()
	if st.Disk.Quarantined != 4 {
		t.Errorf("%d slots in quarantine, want the bad one of each of 4 extents", st.Disk.Quarantined)
	}
	p.mu.Lock()
	p.slots.Disk.Each(func(ref registry.Ref, s *tier.Slot) {
		if (s.State == storage.StateQuarantined) != (ref.Slot() == 5) {
			t.Errorf("slot %d is %s", ref, s.State)
		}
	})
	p.mu.Unlock()
	if n := p.queues().WriteFaults; n != 0 {
		t.Errorf("%d slots are still suspect", n)
	}
	p.check()
}

// badRegion refuses writes to the first bytes of an extent while it is armed.
type badRegion struct {
	extent.File
	armed *atomic.Bool
	bytes int64
}

func (b badRegion) WriteAt(p []byte, off int64) (int, error) {
	if b.armed.Load() && off < b.bytes {
		return 0, unix.EIO
	}
	return b.File.WriteAt(p, off)
}

// Slots that lie side by side and all fail do not keep the rest of the disk from being
// written, and end in quarantine.
func TestBadRegionOfTheDiskDoesNotEndWriting(t *testing.T) {
	const bad = 2 * diskio.BreakerFailures
	for name, full := range map[string]bool{"of a new extent": false, "of a full tier": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				armed := &atomic.Bool{}
				p := newTestPool(t, Config{
					HostBytes: hostBytes(64), DiskBytes: 128 * testSlotBytes, ExtentBytes: 128 * testSlotBytes,
					Transfers: 1, TransferBatch: 4,
					WrapDisk: func(path string, f extent.File) extent.File {
						if filepath.Base(path) == "slots.table" {
							return f
						}
						return badRegion{f, armed, bad * testSlotBytes}
					},
				})
				for seed := uint64(1); full && seed <= 8; seed++ {
					p.store(chain(seed, 16))
					p.quiesce()
				}
				armed.Store(true)
				for seed := range uint64(60) {
					p.store(chain(100+seed, 8))
					time.Sleep(time.Minute)
				}
				p.mu.Lock()
				p.slots.Disk.Each(func(ref registry.Ref, s *tier.Slot) {
					if (s.State == storage.StateQuarantined) != (ref.Slot() < bad) {
						t.Errorf("slot %d is %s", ref, s.State)
					}
				})
				p.mu.Unlock()
				if st := p.Stats(); st.DiskReadOnly || st.WriteErrors > 4*bad {
					t.Errorf("writes end %v, %d errors, %d blocks written", st.DiskReadOnly, st.WriteErrors, st.WriteBehind)
				}
				p.check()
			})
		})
	}
}

// A slot that failed once is used again.
func TestTransientWriteErrorCostsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, refuse, at := refusingPool(t, false)
		at.Store(5 * testSlotBytes)
		for seed := range uint64(8) {
			refuse(unix.EIO)
			for more := range uint64(4) {
				p.store(chain(100+10*seed+more, 32))
				time.Sleep(suspectTime / 8)
			}
			refuse(nil)
			for more := range uint64(5) {
				p.store(chain(104+10*seed+more, 32))
				time.Sleep(suspectTime)
			}
		}
		if st := p.Stats(); st.Disk.Quarantined != 0 || st.WriteErrors == 0 {
			t.Errorf("%d slots in quarantine after %d errors", st.Disk.Quarantined, st.WriteErrors)
		}
		p.check()
	})
}

// Slots with a bad medium do not keep an extent with its namespace.
func TestExtentWithAQuarantinedSlotIsYielded(t *testing.T) {
	const slots = 16
	p := newTestPool(t, Config{
		HostBytes: hostBytes(4 * slots), DiskBytes: 4 * slots * testSlotBytes, ExtentBytes: slots * testSlotBytes,
	})
	for seed := range uint64(4) {
		p.store(chain(1+seed, slots))
		p.quiesce()
	}
	p.mu.Lock()
	for _, part := range p.slots.Disk.Extents {
		ref := registry.MakeRef(part.Number, slots-1)
		p.slots.Drop(p.slots.Disk, ref, storage.StateQuarantined)
	}
	p.mu.Unlock()
	other := p.openOther("other")
	if other.Stats().Disk.Extents != 1 || p.Stats().Disk.Extents != 3 {
		t.Errorf("the other namespace has %d disk extents, the first one %d", other.Stats().Disk.Extents, p.Stats().Disk.Extents)
	}
	p.check()
	other.check()
}
