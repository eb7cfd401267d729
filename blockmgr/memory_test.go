package blockmgr

import (
	"os"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

func TestMemoryThatAClientTruncatedCostsItsBlocksOnly(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	blocks := chain(1, 2)
	res, err := p.Grant(1, blocks, 0)
	if err != nil {
		t.Fatal(err)
	}
	noError(t, p.Extents()[0].File.Truncate(testSlotBytes))
	noError(t, p.Commit(1, []Slot{res.Grants[0].Slot, res.Grants[1].Slot}))
	p.quiesce()
	if st := p.Stats(); st.MemoryErrors != 2 || st.Host.Quarantined != 2 || st.Blocks != 0 {
		t.Errorf("%+v", st)
	}
	if got := p.find(blocks); len(got) != 0 {
		t.Errorf("%d blocks found", len(got))
	}
}

// Host memory that is gone is to blame for a failed read: the block stays on
// disk and is found again through a slot that is good.
func TestDamagedHostMemoryCostsNoDiskBlock(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 3)
	p.store(blocks)
	p.quiesce()
	p.evictHost(blocks)
	e := p.Extents()[0]
	noError(t, os.Truncate(e.Path, int64(e.DataOffset)))
	if got := p.find(blocks[:1]); len(got) != 0 {
		t.Errorf("found %q in memory that is gone", sources(got))
	}
	st := p.Stats()
	if st.MemoryErrors != 1 || st.Host.Quarantined != 1 || st.ReadErrors+st.CorruptReads != 0 || st.Disk.Quarantined != 0 {
		t.Errorf("%+v", st)
	}
	if got := p.tiersOf(blocks); got != "DDD" {
		t.Errorf("resident %q", got)
	}
	p.check()
	noError(t, os.Truncate(e.Path, int64(e.FileBytes)))
	if got := sources(p.find(blocks)); got != "DDD" {
		t.Errorf("found %q", got)
	}
}

func TestDamagedHostMemoryIsNotWrittenAndCostsNoDiskSlot(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := diskPool(t, func(cfg *Config) {
		cfg.WrapDisk = faults(func(op storagetest.Op, _ int) storagetest.Fault {
			if op == storagetest.OpWrite {
				once.Do(func() { close(entered) })
				<-release
			}
			return storagetest.FaultNone
		}, isExtent)
	})
	blocks := chain(1, 1)
	p.store(blocks)
	<-entered
	e := p.Extents()[0]
	noError(t, os.Truncate(e.Path, int64(e.DataOffset)))
	close(release)
	p.quiesce()
	st := p.Stats()
	if st.MemoryErrors != 1 || st.Host.Quarantined != 1 || st.WriteErrors != 0 || st.Disk.Quarantined != 0 || st.Blocks != 0 {
		t.Errorf("%+v", st)
	}
	p.check()
}

// Neither the agent that finds the damage nor a later one frees the slot.
func TestDamagedHostMemoryIsNotFreedByTheNextAgent(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4)})
	e := p.Extents()[0]
	noError(t, os.Truncate(e.Path, int64(e.DataOffset)))
	// As an agent finds a slot that the one before it took out of use.
	quarantined := func(pinned bool) Slot {
		ref := p.slots.Alloc(p.slots.Host)
		part, i := p.slots.Host.At(ref)
		s := p.slots.Host.Slot(ref)
		if pinned {
			p.members.previous[99] = &previousHolds{bit: 1 << 63, pinned: map[registry.Ref]struct{}{}}
			part.Records.SetPins(i, 1<<63)
		}
		r := storage.Record{State: storage.StateQuarantined, Generation: s.Generation}
		p.recoverHostSlotLocked(ref, s, &r, false)
		return p.slots.Host.Name(ref)
	}
	p.mu.Lock()
	quarantined(false)
	quarantined(true)
	p.mu.Unlock()
	p.check()
	p.forget(99)
	p.check()
	if st := p.Stats(); st.Host.Quarantined != 2 || st.Host.Free != 2 || st.MemoryErrors != 2 {
		t.Errorf("%+v", st)
	}
	noError(t, os.Truncate(e.Path, int64(e.FileBytes)))
	p.mu.Lock()
	quarantined(false)
	p.mu.Unlock()
	if st := p.Stats(); st.Host.Quarantined != 2 || st.Host.Free != 2 {
		t.Errorf("%+v while the memory is good", st.Host)
	}
}
