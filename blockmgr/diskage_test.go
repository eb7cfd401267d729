package blockmgr

import (
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// recencyShift is how coarse the ages in records are.
const recencyShift = 10

// ageing advances the pool's clock so far that records tell the difference.
func (p *testPool) ageing() {
	for range 4 << recencyShift {
		p.Touch(nil)
	}
}

// resetHost takes blocks out of host memory and leaves the others alone.
func (p *testPool) resetHost(blocks []Block) {
	p.t.Helper()
	var hashes []kv.SequenceHash
	for i := range blocks {
		hashes = append(hashes, blocks[i].Seq)
	}
	if res, err := p.ResetBlocks(kv.TierHost, hashes); err != nil || len(res.Reset) != len(blocks) {
		p.t.Fatalf("reset %d of %d blocks: %v", len(res.Reset), len(blocks), err)
	}
	p.quiesce()
}

// Ages alone are written in bounded pieces.
func TestAgesAreWrittenPieceByPiece(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(64), DiskBytes: 64 * testSlotBytes})
	p.store(chain(1, 64))
	p.quiesce()
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 4 << recencyShift {
		p.slots.Tick()
	}
	p.slots.Disk.Each(func(_ registry.Ref, s *tier.Slot) { p.slots.Touch(s.Entry) })
	p.slots.Host.Each(func(_ registry.Ref, s *tier.Slot) { p.slots.AgeDiskCopy(s) })
	part := p.slots.Disk.Extents[0]
	if pages := part.Records.TakeDirty(nil); len(pages) != 0 {
		t.Errorf("%d pages are written with the next batch for their ages", len(pages))
	}
	if n := part.Records.DirtyAged(1); n != 2 {
		t.Errorf("%d pages of 64 records", n)
	}
	if pages := part.Records.TakeDirty(nil); len(pages) != 2 {
		t.Errorf("%d pages are written", len(pages))
	}
	if n := part.Records.DirtyAged(1); n != 0 {
		t.Errorf("%d pages once more", n)
	}
}

// slowTable takes a second for each write of records while it is armed.
type slowTable struct {
	extent.File
	armed *atomic.Bool
}

func (s slowTable) WriteAt(p []byte, off int64) (int, error) {
	if s.armed.Load() {
		time.Sleep(time.Second)
	}
	return s.File.WriteAt(p, off)
}

// Ages take what is left of the first half of the time in which Close waits for the
// disk: they do not make it look stuck.
func TestAgesDoNotMakeCloseFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 32
		armed := &atomic.Bool{}
		p := openTestPool(t, Config{
			HostDir: t.TempDir(), DiskDir: t.TempDir(), HostBytes: hostBytes(16 * slots),
			DiskBytes: 16 * slots * testSlotBytes, ExtentBytes: slots * testSlotBytes, IODeadline: 4 * time.Second,
			WrapDisk: func(path string, f extent.File) extent.File {
				if filepath.Base(path) == "slots.table" {
					return slowTable{f, armed}
				}
				return f
			},
		})
		for seed := range uint64(16) {
			p.store(chain(1+seed, slots))
			p.quiesce()
		}
		p.ageing()
		for seed := range uint64(16) {
			p.find(chain(1+seed, slots))
		}
		p.mu.Lock()
		p.slots.Disk.PutRecord(0, p.slots.Disk.Record(0)) // something else is to be written first
		p.slots.Disk.PutRecord(registry.MakeRef(1, 0), p.slots.Disk.Record(registry.MakeRef(1, 0)))
		p.mu.Unlock()
		armed.Store(true)
		began := time.Now()
		if err := p.m.Close(); err != nil {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
