package blockmgr

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// resetDrops is how many blocks a slice of a reset drops at most.
const resetDrops = 512

// slice does one slice of a reset, as Reset does between two locks.
func (p *testPool) slice(r *tier.Reset) (more bool, drops uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.slots.Counters.BlocksReset
	more = p.slots.ResetSlice(r)
	return more, p.slots.Counters.BlocksReset - before
}

// A reset goes on in slices, between which nobody finds what was stored before it
// began, and what is stored stays.
func TestStoresBetweenTheSlicesOfAResetStay(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4096), DiskBytes: 4096 * testSlotBytes})
	const chains, each = 40, 32
	for seed := range uint64(chains) {
		p.store(chain(seed+1, each))
	}
	p.quiesce()
	p.mu.Lock()
	r := p.slots.BeginReset(p.slots.Tiers())
	p.mu.Unlock()
	if more, drops := p.slice(r); !more || drops != resetDrops {
		t.Fatalf("the first slice drops %d of %d blocks, more %v; want %d", drops, 2*chains*each, more, resetDrops)
	}
	last := chain(chains, each)
	if st := p.Stats(); st.Blocks == 0 {
		t.Fatal("no block is left for the next slices")
	}
	if n := len(p.find(last)); n != 0 {
		t.Errorf("%d blocks are found that were stored before the reset", n)
	}
	other := chain(chains-1, each)
	var keys []kv.StoredKey
	for i := range other {
		keys = append(keys, other[i].Key)
	}
	if kept, err := p.Keep(keys, time.Hour); err != nil || kept != 0 || p.Touch(keys) != 0 || p.Prefetch(other) != 0 {
		t.Errorf("%d blocks are kept, %v", kept, err)
	}
	for _, info := range p.Dump() {
		t.Errorf("block %s is listed", info.Block.Key)
	}
	for _, blocks := range [][]Block{last, chain(100, each)} {
		if n := p.store(blocks); n != each {
			t.Errorf("%d of %d blocks are granted during the reset", n, each)
		}
	}
	// What comes after a block that is gone may come back without it.
	if n := p.store(chain(chains-2, each)[1:]); n != each-1 {
		t.Errorf("%d of %d blocks are granted during the reset", n, each-1)
	}
	p.quiesce()
	slices := 1
	for more := true; more; slices++ {
		var drops uint64
		if more, drops = p.slice(r); drops > resetDrops {
			t.Errorf("a slice drops %d blocks", drops)
		}
	}
	st := p.Stats()
	if st.Blocks != 3*each-1 || st.BlocksReset != 2*chains*each || slices < 2*chains*each/resetDrops {
		t.Errorf("%d blocks are left, %d copies dropped in %d slices; want %d and %d", st.Blocks, st.BlocksReset, slices, 3*each-1, 2*chains*each)
	}
	for _, blocks := range [][]Block{last, chain(100, each)} {
		if got := p.tiersOf(blocks[:2]); got != "BB" || len(p.find(blocks)) != each {
			t.Errorf("resident %q, want what was stored during the reset", got)
		}
	}
}

// announcer tells when the first block has left.
type announcer struct {
	EventSink
	once *sync.Once
	left chan struct{}
}

func (a announcer) BlockRemoved(ns kv.NamespaceID, t kv.Tier, b Block) {
	a.EventSink.BlockRemoved(ns, t, b)
	a.once.Do(func() { close(a.left) })
}

func TestStoresDuringAResetStay(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(4096), DiskBytes: 4096 * testSlotBytes})
	for round := range uint64(5) {
		blocks := chain(1, 2000)
		p.store(blocks)
		p.quiesce()
		a := announcer{p.sink, &sync.Once{}, make(chan struct{})}
		p.mu.Lock()
		p.slots.Sink = a
		p.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- p.ResetAll() }()
		<-a.left
		again := blocks[:10]
		p.store(again)
		p.store(chain(100+round, 10))
		noError(t, <-done)
		if n := len(p.find(blocks)); n != 10 {
			t.Errorf("%d blocks are found after the reset, want the 10 that were stored again", n)
		}
		if n := len(p.find(chain(100+round, 10))); n != 10 {
			t.Errorf("%d of 10 blocks are found that were stored meanwhile", n)
		}
		p.quiesce()
		p.check()
	}
}

// Records of many blocks that change at once are copied a few at a time: while the first
// of them are being written, the others wait where they are.
func TestFlushAfterAResetCopiesFewRecordsAtATime(t *testing.T) {
	const blocks = 8192
	gate := &storagetest.Gate{}
	var armed atomic.Bool
	p := newTestPool(t, Config{HostBytes: hostBytes(blocks), DiskBytes: blocks * testSlotBytes, TransferBatch: 1024,
		WrapDisk: func(_ string, f extent.File) extent.File {
			return &storagetest.Faulty{File: forgetful{f}, Gate: gate, Plan: func(op storagetest.Op, _ int) storagetest.Fault {
				if op == storagetest.OpWrite && armed.Load() {
					return storagetest.FaultStall
				}
				return storagetest.FaultNone
			}}
		}})
	for seed := range uint64(blocks / 1024) {
		for stored := 0; stored < 1024; p.quiesce() {
			stored += p.store(chain(seed+1, 1024))
		}
	}
	if n := p.Stats().Disk.Inactive; n != blocks {
		t.Fatalf("%d blocks are on disk", n)
	}
	armed.Store(true)
	noError(t, p.ResetAll())
	waitFor(t, func() bool { return gate.Waiting() > 0 })
	p.mu.Lock()
	var waiting []storage.Page
	for _, part := range p.slots.Disk.Extents {
		waiting = part.Records.TakeDirty(waiting)
	}
	storage.Redirty(waiting)
	p.mu.Unlock()
	const pages = blocks * storage.RecordSize / storage.PageSize
	if n := len(waiting); n < pages-2*flushPages || n > pages-flushPages {
		t.Errorf("%d of %d pages wait while the first %d are written", n, pages, flushPages)
	}
	armed.Store(false)
	gate.Open()
	p.quiesce()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range p.slots.Disk.Extents {
		if left := part.Records.TakeDirty(nil); len(left) != 0 {
			t.Errorf("%d pages are not written", len(left))
		}
	}
}

// forgetful is a file that takes no room.
type forgetful struct{ extent.File }

func (f forgetful) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (f forgetful) Allocate(int64) error                   { return nil }

func TestResetOfAPoolThatClosesEnds(t *testing.T) {
	p := openTestPool(t, Config{HostDir: t.TempDir(), HostBytes: hostBytes(2048)})
	p.store(chain(1, 1500))
	p.quiesce()
	p.mu.Lock()
	p.life.closing = true
	p.mu.Unlock()
	err := p.reset(func() ([]*tier.Tier, error) { return p.slots.Tiers(), nil })
	if !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
	p.mu.Lock()
	p.life.closing = false
	left := p.slots.Registry.Blocks()
	p.mu.Unlock()
	if left != 1500 {
		t.Errorf("%d blocks are left, want all", left)
	}
	if err := p.m.Close(); err != nil {
		t.Error(err)
	}
}
