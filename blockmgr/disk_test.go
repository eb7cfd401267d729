package blockmgr

import (
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// diskPool is a pool with room for 8 blocks in host memory and 64 on disk.
func diskPool(t *testing.T, change func(*Config)) *testPool {
	cfg := Config{HostBytes: hostBytes(8), DiskBytes: 64 * testSlotBytes}
	if change != nil {
		change(&cfg)
	}
	return newTestPool(t, cfg)
}

// diskLocation is where a block lies on disk.
func (p *testPool) diskLocation(key kv.StoredKey) Location {
	p.t.Helper()
	for _, info := range p.Dump() {
		if info.Block.Key == key && info.Tiers.Has(kv.TierDisk) {
			return info.Disk
		}
	}
	p.t.Fatalf("block %s is not on disk", key)
	return Location{}
}

func TestFlippedDiskByteIsAMiss(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 5)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	if got := p.tiersOf(blocks); got != "DDDDD" {
		t.Fatalf("resident %q", got)
	}
	where := p.diskLocation(blocks[2].Key)
	flip(t, where.Path, where.Offset+int64(p.BlockBytes())-1)
	// find compares every byte that it is given with what was stored.
	if got := sources(p.find(blocks)); got != "DD" {
		t.Errorf("found %q, want the two blocks before the flipped one", got)
	}
	st := p.Stats()
	if st.CorruptReads != 1 || st.ReadErrors != 0 || st.Disk.Quarantined != 1 {
		t.Errorf("corrupt reads %d, read errors %d, quarantined %d", st.CorruptReads, st.ReadErrors, st.Disk.Quarantined)
	}
	if got := p.tiersOf(blocks); got[2] != '-' {
		t.Errorf("the flipped block is still resident: %q", got)
	}
	// The block can be stored again, and then the whole prefix is back.
	if n := p.store(blocks); n != 1 {
		t.Errorf("%d blocks granted, want the lost one", n)
	}
	if got := len(p.find(blocks)); got != 5 {
		t.Errorf("%d blocks found", got)
	}
	p.quiesce()
}

// A byte that flips in host memory after the checksum was taken must not be
// blessed by a new checksum on its way to disk.
func TestChecksumIsCarriedToDiskNotComputedFromTheCopy(t *testing.T) {
	release := make(chan struct{})
	p := diskPool(t, func(c *Config) {
		c.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpWrite {
				<-release
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	blocks := chain(1, 1)
	p.store(blocks)
	waitFor(t, func() bool { return p.Stats().SealQueue == 0 && p.Stats().Disk.Granted == 1 })
	for _, info := range p.Dump() {
		flip(t, info.Host.Path, info.Host.Offset)
	}
	close(release)
	p.quiesce()
	p.evictHost(blocks)
	if got := p.find(blocks); len(got) != 0 || p.Stats().CorruptReads != 1 {
		t.Errorf("%d blocks found, %d corrupt reads", len(got), p.Stats().CorruptReads)
	}
}

const (
	isExtent = true
	isTable  = false
)

// faults wraps the extents, or the slot table, of the disk tier with a plan. It
// tells them apart by their first operation: only extents are allocated.
func faults(plan func(op storagetest.Op, n int) storagetest.Fault, extents bool) func(string, extent.File) extent.File {
	return func(_ string, f extent.File) extent.File {
		var extent atomic.Bool
		return &storagetest.Faulty{File: f, Plan: func(op storagetest.Op, n int) storagetest.Fault {
			if op == storagetest.OpAllocate {
				extent.Store(true)
			}
			if extent.Load() != extents {
				return storagetest.FaultNone
			}
			return plan(op, n)
		}}
	}
}

func TestReadFaultsAreMissesAndThePoolGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		fault   storagetest.Fault
		corrupt bool
	}{
		"EIO": {storagetest.FaultEIO, false}, "short read": {storagetest.FaultShort, false}, "torn read": {storagetest.FaultTorn, true},
	} {
		t.Run(name, func(t *testing.T) {
			var armed atomic.Bool
			p := diskPool(t, func(cfg *Config) {
				cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
					if op == storagetest.OpRead && armed.Load() {
						return c.fault
					}
					return storagetest.FaultNone
				}, isExtent)
			})
			blocks := chain(1, 3)
			p.store(blocks)
			p.quiesce()
			p.evictHost(blocks)
			armed.Store(true)
			if got := p.find(blocks); len(got) != 0 {
				t.Errorf("%d blocks found", len(got))
			}
			armed.Store(false)
			st := p.Stats()
			if bad := st.CorruptReads + st.ReadErrors; bad != 3 || (st.CorruptReads == 3) != c.corrupt {
				t.Errorf("%d corrupt, %d failed", st.CorruptReads, st.ReadErrors)
			}
			p.store(blocks)
			p.quiesce()
			p.evictHost(blocks)
			if got := sources(p.find(blocks)); got != "DDD" {
				t.Errorf("found %q after the fault has passed", got)
			}
		})
	}
}

func TestWriteFaultsLoseOnlyTheDiskCopy(t *testing.T) {
	for name, fault := range map[string]storagetest.Fault{
		"EIO": storagetest.FaultEIO, "ENOSPC": storagetest.FaultENOSPC, "short write": storagetest.FaultShort,
	} {
		t.Run(name, func(t *testing.T) {
			var armed atomic.Bool
			armed.Store(true)
			p := diskPool(t, func(cfg *Config) {
				cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
					if op == storagetest.OpWrite && armed.Load() {
						return fault
					}
					return storagetest.FaultNone
				}, isExtent)
			})
			// One block: the failed writes of more would open the breaker.
			blocks := chain(1, 1)
			p.store(blocks)
			p.quiesce()
			if got := p.tiersOf(blocks); got != "H" {
				t.Errorf("resident %q", got)
			}
			if st := p.Stats(); st.WriteErrors != writeAttempts || st.WriteRetries != writeAttempts-1 || st.Disk.Granted != 0 || st.DiskOpen {
				t.Errorf("%+v", st)
			}
			armed.Store(false)
			// A hit in host memory offers the block to the disk again.
			p.find(blocks)
			p.quiesce()
			if got := p.tiersOf(blocks); got != "B" {
				t.Errorf("resident %q after the fault has passed", got)
			}
		})
	}
}

func TestTornWriteIsAMissNotAWrongByte(t *testing.T) {
	p := newTestPool(t, Config{
		HostBytes: 128 << 10, DiskBytes: 1 << 20, ExtentBytes: 64 << 10,
		WrapDisk: faults(func(op storagetest.Op, n int) storagetest.Fault {
			if op == storagetest.OpWrite && n == 1 {
				return storagetest.FaultTorn
			}
			return storagetest.FaultNone
		}, isExtent),
	})
	// A torn write needs blocks of more than a page to leave half of one.
	ns := testNamespace("wide")
	ns.InnerDim = 128
	wide := p.openNamespace(ns)
	blocks := chain(1, 1)
	wide.store(blocks)
	wide.quiesce()
	wide.evictHost(blocks)
	if got := wide.find(blocks); len(got) != 0 || wide.Stats().CorruptReads != 1 {
		t.Errorf("%d blocks found, %d corrupt reads", len(got), wide.Stats().CorruptReads)
	}
	wide.check()
}

func TestSlotTableFaultsCostTheDiskCopyAndAreRepaired(t *testing.T) {
	var armed atomic.Bool
	p := diskPool(t, func(cfg *Config) {
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpWrite && armed.Load() {
				return storagetest.FaultEIO
			}
			return storagetest.FaultNone
		}, isTable)
	})
	armed.Store(true)
	blocks := chain(1, 3)
	p.store(blocks)
	p.quiesce()
	if got := p.tiersOf(blocks); got != "HHH" || p.Stats().TableErrors == 0 || p.Stats().Disk.Quarantined != 0 {
		t.Errorf("resident %q, %+v", got, p.Stats())
	}
	armed.Store(false)
	p.find(blocks)
	p.retryDisk() // the breaker may have opened
	waitFor(t, func() bool { return p.tiersOf(blocks) == "BBB" })
}

func TestDiskThatCannotGrowKeepsWhatItHas(t *testing.T) {
	extents := 0
	p := diskPool(t, func(cfg *Config) {
		cfg.ExtentBytes = 4 * testSlotBytes
		cfg.WrapDisk = func(_ string, f extent.File) extent.File {
			return &storagetest.Faulty{File: f, Plan: func(op storagetest.Op, _ int) storagetest.Fault {
				if op == storagetest.OpAllocate {
					if extents++; extents > 1 {
						return storagetest.FaultENOSPC
					}
				}
				return storagetest.FaultNone
			}}
		}
	})
	for i := range 8 {
		p.store(chain(uint64(i), 1))
		p.quiesce()
	}
	st := p.Stats()
	if st.Disk.Capacity != 4 || st.GrowErrors == 0 || st.DiskEvictions != 4 || st.WriteBehind != 8 {
		t.Errorf("%+v", st)
	}
}

func TestDiskTierWithoutHostTierGoesThroughAStagingExtent(t *testing.T) {
	p := newTestPool(t, Config{DiskBytes: 1 << 20, ExtentBytes: 16 * testSlotBytes})
	if e := p.Extents(); len(e) != 1 || e[0].Slots != stagingSlots {
		t.Fatalf("staging extents %+v", e)
	}
	for i := range uint64(6) {
		p.store(chain(i, 32))
		p.quiesce()
	}
	st := p.Stats()
	if st.Host.Capacity != stagingSlots || st.WriteBehind != 192 || st.Disk.Inactive != 192 {
		t.Errorf("%+v", st)
	}
	for i := range uint64(6) {
		if got := len(p.find(chain(i, 32))); got != 32 {
			t.Errorf("chain %d: %d blocks", i, got)
		}
	}
}

func TestFullWriteQueueDropsTheOfferAndMakesItAgain(t *testing.T) {
	release := make(chan struct{})
	p := diskPool(t, func(cfg *Config) {
		cfg.Transfers = 1
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpWrite {
				<-release
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	p.store(chain(1, 1))
	waitFor(t, func() bool { return p.Stats().Disk.Granted == 1 })
	p.store(chain(2, 7))
	waitFor(t, func() bool { return p.Stats().SealQueue == 0 && p.Stats().WriteBehindDropped == 3 })
	if st := p.Stats(); st.WriteQueue != 4 || st.Host.Active != 5 {
		t.Errorf("%+v", st)
	}
	p.check()
	close(release)
	p.quiesce()
	if st := p.Stats(); st.WriteBehind != 8 || st.WriteBehindDropped != 3 {
		t.Errorf("%d blocks written, %d offers dropped", st.WriteBehind, st.WriteBehindDropped)
	}
}

func TestDiskEvictionTakesLeavesFirst(t *testing.T) {
	p := diskPool(t, func(cfg *Config) { cfg.DiskBytes = 8 * testSlotBytes })
	first := chain(1, 8)
	p.store(first)
	p.quiesce()
	p.find(first)
	p.quiesce()
	if got := p.tiersOf(first); got != "BBBBBBBB" {
		t.Fatalf("resident %q", got)
	}
	p.store(chain(2, 3))
	p.quiesce()
	if got := p.tiersOf(first); got != "BBBBB---" {
		t.Errorf("resident %q", got)
	}
}

func TestSequenceLongerThanTheDiskKeepsItsPrefixThere(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(64), DiskBytes: 8 * testSlotBytes})
	p.store(chain(2, 3))
	p.quiesce()
	blocks := chain(1, 24)
	for i := 0; i < len(blocks); i += 4 {
		p.store(blocks[i : i+4])
		p.quiesce()
	}
	if got := p.tiersOf(blocks); got != "BBBBBBBBHHHHHHHHHHHHHHHH" {
		t.Errorf("resident %q", got)
	}
	if st := p.Stats(); st.WriteBehindRefused != 16 {
		t.Errorf("%d blocks refused by the disk, want 16", st.WriteBehindRefused)
	}
}

func TestDiskCopyOfABlockInDemandIsNotEvictedFirst(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(8), DiskBytes: 4 * testSlotBytes})
	var blocks []Block
	for i := range uint64(4) {
		blocks = append(blocks, chain(i+1, 1)...)
		p.store(blocks[i:])
		p.quiesce()
	}
	p.find(blocks[:1]) // a hit in host memory, which does not touch the disk copy
	p.store(chain(9, 1))
	p.quiesce()
	if got := p.tiersOf(blocks); got != "BHBB" {
		t.Errorf("resident %q; the second block was the oldest on disk", got)
	}
}
