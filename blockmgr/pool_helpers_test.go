package blockmgr

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/blockmgr/diskio"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testNamespace has blocks of 2304 bytes in slots of 4096.
func testNamespace(model string) kv.Namespace {
	return kv.Namespace{
		Model: model, Weights: "w", DType: "float16", Layers: 1, OuterDim: 2, BlockSize: 16, InnerDim: 36,
		DTypeBytes: 2, Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "test",
	}
}

const testSlotBytes = 4096

// hostBytes is the size of a host tier with exactly n slots.
func hostBytes(n uint64) uint64 { return n * testSlotBytes }

// testPool is a pool whose conservation and events are checked when it ends.
type testPool struct {
	*Pool
	t    fataler
	m    *Manager
	sink *orderSink
	// clock is that of the breakers.
	clock *movedClock
	// sid is the session that store and find use.
	sid SessionID
	// ids hands out the session ids of the manager, which are never used twice.
	ids *atomic.Uint64
}

// begin begins a session of its own id.
func (p *testPool) begin() SessionID {
	p.t.Helper()
	s := SessionID(p.ids.Add(1))
	if err := p.BeginSession(s); err != nil {
		p.t.Fatalf("session: %v", err)
	}
	return s
}

// newTestPool opens a manager in fresh directories, or in those of cfg, with
// one pool and session 1. Nothing is scrubbed unless cfg says so.
func newTestPool(t *testing.T, cfg Config) *testPool {
	t.Helper()
	if cfg.HostDir == "" {
		cfg.HostDir = t.TempDir()
	}
	if cfg.DiskDir == "" {
		cfg.DiskDir = t.TempDir()
	}
	p := openTestPool(t, cfg)
	t.Cleanup(p.finish)
	return p
}

// openTestPool is newTestPool in directories that outlive the pool, which the
// caller ends. Its session has the first id after those of earlier agents.
func openTestPool(t fataler, cfg Config) *testPool {
	t.Helper()
	return openTestManager(t, cfg).openOther("test")
}

// openTestManager opens a manager and no pool yet; openOther makes one of it.
func openTestManager(t fataler, cfg Config) *testPool {
	t.Helper()
	sink := newOrderSink(t)
	cfg.Sink = sink
	cfg.ScrubBytesPerSecond = cmp.Or(cfg.ScrubBytesPerSecond, -1)
	clock := &movedClock{}
	cfg.now = clock.now
	m, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	p := &testPool{t: t, m: m, sink: sink, clock: clock, ids: &atomic.Uint64{}}
	for _, f := range m.Previous() {
		p.ids.Store(max(p.ids.Load(), uint64(f.Session)))
	}
	return p
}

// openOther opens the namespace of another model in the same manager, with a
// session of its own.
func (p *testPool) openOther(model string) *testPool {
	p.t.Helper()
	return p.openNamespace(testNamespace(model))
}

func (p *testPool) openNamespace(ns kv.Namespace) *testPool {
	p.t.Helper()
	pool, err := p.m.Pool(ns)
	if err != nil {
		p.t.Fatalf("pool of %s: %v", ns.Model, err)
	}
	other := &testPool{Pool: pool, t: p.t, m: p.m, sink: p.sink, clock: p.clock, ids: p.ids}
	other.sid = other.begin()
	return other
}

// finish checks the pool once more and closes its manager.
func (p *testPool) finish() {
	p.t.Helper()
	p.check()
	p.checkEvents()
	if err := p.m.Close(); err != nil {
		p.t.Errorf("close: %v", err)
	}
}

func (p *testPool) quiesce() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := p.Quiesce(ctx); err != nil {
		p.t.Fatalf("quiesce: %v", err)
	}
}

// store grants, fills and commits blocks for the pool's own session and returns
// how many were granted.
func (p *testPool) store(blocks []Block) int {
	p.t.Helper()
	return p.storeAt(blocks, 0)
}

// storeAt is store at a priority.
func (p *testPool) storeAt(blocks []Block, priority uint32) int {
	p.t.Helper()
	res, err := p.Grant(p.sid, blocks, priority)
	if err != nil {
		p.t.Fatalf("grant: %v", err)
	}
	if len(res.Grants)+res.Present+res.Refused != len(blocks) {
		p.t.Errorf("%d grants, %d present, %d refused of %d", len(res.Grants), res.Present, res.Refused, len(blocks))
	}
	slots := make([]Slot, len(res.Grants))
	for i, g := range res.Grants {
		p.write(g.Slot, p.content(&blocks[g.Index], 0))
		slots[i] = g.Slot
	}
	if err := p.Commit(p.sid, slots); err != nil {
		p.t.Fatalf("commit: %v", err)
	}
	return len(slots)
}

// find looks blocks up with all the time they need, checks the bytes of what
// it gets, and unpins it again.
func (p *testPool) find(blocks []Block) []kv.Tier {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res, err := p.Lookup(ctx, p.sid, blocks)
	if err != nil {
		p.t.Fatalf("lookup: %v", err)
	}
	for i, s := range res.Slots {
		if !bytes.Equal(p.read(s), p.content(&blocks[i], 0)) {
			p.t.Errorf("block %d of the lookup has wrong bytes", i)
		}
	}
	if err := p.Unpin(p.sid, res.Slots); err != nil {
		p.t.Errorf("unpin: %v", err)
	}
	return res.Sources
}

// pin looks blocks up, all of which must be found, and leaves them pinned.
func (p *testPool) pin(s SessionID, blocks []Block) []Slot {
	p.t.Helper()
	res, err := p.Lookup(context.Background(), s, blocks)
	if err != nil || len(res.Slots) != len(blocks) {
		p.t.Fatalf("%d of %d blocks pinned, %v", len(res.Slots), len(blocks), err)
	}
	return res.Slots
}

// grant asks for slots for blocks, each of which must get one.
func (p *testPool) grant(s SessionID, blocks []Block) []Slot {
	p.t.Helper()
	res, err := p.Grant(s, blocks, 0)
	if err != nil || len(res.Grants) != len(blocks) {
		p.t.Fatalf("%d of %d blocks granted, %v", len(res.Grants), len(blocks), err)
	}
	slots := make([]Slot, len(blocks))
	for i, g := range res.Grants {
		slots[i] = g.Slot
	}
	return slots
}

// hostLocation is where a block lies in host memory.
func (p *testPool) hostLocation(key kv.StoredKey) Location {
	p.t.Helper()
	for _, info := range p.Dump() {
		if info.Block.Key == key && info.Tiers.Has(kv.TierHost) {
			return info.Host
		}
	}
	p.t.Fatalf("block %s is not in host memory", key)
	return Location{}
}

// evictHost stores other blocks, one at a time, until the host tier holds none
// of the given ones.
func (p *testPool) evictHost(blocks []Block) {
	p.t.Helper()
	wanted := map[kv.StoredKey]bool{}
	for _, b := range blocks {
		wanted[b.Key] = true
	}
	for round := range 64 {
		left := 0
		for _, info := range p.Dump() {
			if wanted[info.Block.Key] && info.Tiers.Has(kv.TierHost) {
				left++
			}
		}
		if left == 0 {
			return
		}
		p.store(chain(1<<20+uint64(round), left))
		p.quiesce()
	}
	p.t.Fatalf("the blocks stay in host memory")
}

// movedClock is the real time plus an offset.
type movedClock struct{ offset atomic.Int64 }

func (c *movedClock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

// leaveDiskAlone has a disk that the breaker keeps away from not tried for long.
func (p *testPool) leaveDiskAlone() {
	p.clock.offset.Add(-int64(time.Hour))
}

// retryDisk has a disk that the breaker keeps away from tried at once.
func (p *testPool) retryDisk() {
	p.clock.offset.Add(2 * int64(time.Hour))
	p.mover.WakeWriter()
}

// tiersOf is where each of the blocks is resident.
func (p *testPool) tiersOf(blocks []Block) string {
	at := map[kv.StoredKey]kv.TierMask{}
	for _, info := range p.Dump() {
		at[info.Block.Key] = info.Tiers
	}
	var s []byte
	for _, b := range blocks {
		m := at[b.Key]
		switch {
		case m.Has(kv.TierHost) && m.Has(kv.TierDisk):
			s = append(s, 'B')
		case m.Has(kv.TierHost):
			s = append(s, 'H')
		case m.Has(kv.TierDisk):
			s = append(s, 'D')
		default:
			s = append(s, '-')
		}
	}
	return string(s)
}

// sources is a list of tiers, one letter each.
func sources(tiers []kv.Tier) string {
	var s []byte
	for _, t := range tiers {
		s = fmt.Append(s, map[kv.Tier]string{kv.TierHost: "H", kv.TierDisk: "D"}[t])
	}
	return string(s)
}

// waitFor waits for a condition that other goroutines bring about.
func waitFor(t fataler, cond func() bool) {
	t.Helper()
	waittest.Until(t, "the condition", cond)
}

// tripBreaker fails as often as it takes to open a breaker.
func tripBreaker(t *testing.T, b *diskio.Breaker) {
	t.Helper()
	for range diskio.BreakerFailures {
		b.Failed(unix.EIO)
	}
	if !b.IsOpen() {
		t.Fatal("the breaker did not open")
	}
}

// Constants of package diskio.
const (
	writeAttempts = 3
	badReads      = 3
	triedSlots    = 16
	suspectTime   = 30 * time.Second
	flushPages    = 64
)

// queues are the lengths of the mover's queues.
func (p *testPool) queues() diskio.Queues {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, queues := p.mover.Snapshot()
	return queues
}
