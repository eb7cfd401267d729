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
