package blockmgr

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
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
func hostBytes(n uint64) uint64 { return storage.HostBytesFor(n, testSlotBytes) }

// fataler is what *testing.T and *rapid.T have in common here.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// orderSink checks that stores and removals alternate for every block and tier.
type orderSink struct {
	t fataler

	mu       sync.Mutex
	resident map[sinkKey]Block
	stored   int
}

type sinkKey struct {
	ns   kv.NamespaceID
	tier kv.Tier
	key  kv.StoredKey
}

func newOrderSink(t fataler) *orderSink { return &orderSink{t: t, resident: map[sinkKey]Block{}} }

func (s *orderSink) BlockStored(ns kv.NamespaceID, tier kv.Tier, b Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sinkKey{ns, tier, b.Key}
	if _, ok := s.resident[k]; ok {
		s.t.Errorf("%s stored in %s twice", b.Key, tier)
	}
	s.resident[k] = b
	s.stored++
}

func (s *orderSink) BlockRemoved(ns kv.NamespaceID, tier kv.Tier, b Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sinkKey{ns, tier, b.Key}
	if was, ok := s.resident[k]; !ok || was != b {
		s.t.Errorf("%s removed from %s, resident %v", b.Key, tier, ok)
	}
	delete(s.resident, k)
}

// testPool is a pool whose conservation and events are checked when it ends.
type testPool struct {
	*Pool
	t    fataler
	m    *Manager
	sink *orderSink
}

// newTestPool opens a manager in fresh directories, or in those of cfg, with
// one pool and session 1.
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

func openTestPool(t fataler, cfg Config) *testPool {
	t.Helper()
	sink := newOrderSink(t)
	cfg.Sink = sink
	m, err := Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	p, err := m.Pool(testNamespace("test"))
	if err != nil {
		t.Fatalf("pool: %v", err)
	}
	if err := p.BeginSession(1); err != nil {
		t.Fatalf("session: %v", err)
	}
	return &testPool{Pool: p, t: t, m: m, sink: sink}
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

// check compares the tiers' counters with their slots and with the capacity.
func (p *testPool) check() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range []*tier{p.host, p.disk} {
		if t == nil || p.closed {
			continue
		}
		st := t.stats()
		if sum := st.Free + st.Granted + st.Staging + st.Receiving + st.Quarantined + st.Active + st.Inactive; sum != st.Capacity {
			p.t.Errorf("%s: states add up to %d of %d: %+v", t.kind, sum, st.Capacity, st)
		}
		var counts [storage.NumStates]int
		active, evictable := 0, 0
		for ref := range t.slots {
			s := &t.slots[ref]
			counts[s.state]++
			if s.resident() && s.pins+s.holds > 0 {
				active++
			}
			if s.heap >= 0 {
				evictable++
				if s.state != storage.StateSealed || s.pins+s.holds > 0 || p.reg.at(s.entry).kids[t.level] > 0 {
					p.t.Errorf("%s slot %d in state %s may be evicted", t.kind, ref, s.state)
				}
			}
			if s.entry != none && p.reg.at(s.entry).slots[t.level] != uint32(ref) {
				p.t.Errorf("%s slot %d: its entry names slot %d", t.kind, ref, p.reg.at(s.entry).slots[t.level])
			}
			if r := t.record(uint32(ref)); r.State != s.state || r.Generation != s.generation {
				p.t.Errorf("%s slot %d is %s/%d, its record %s/%d", t.kind, ref, s.state, s.generation, r.State, r.Generation)
			}
		}
		if counts != t.counts || active != t.active || evictable != len(t.order.heap) || counts[storage.StateFree] != len(t.free) {
			p.t.Errorf("%s: counted %v, %d active, %d evictable; kept %v, %d, %d, %d free",
				t.kind, counts, active, evictable, t.counts, t.active, len(t.order.heap), len(t.free))
		}
	}
}

// checkEvents compares what the sink was told with a dump.
func (p *testPool) checkEvents() {
	p.t.Helper()
	dump := p.Dump()
	p.sink.mu.Lock()
	defer p.sink.mu.Unlock()
	n := 0
	for _, b := range dump {
		for _, tier := range kv.Tiers {
			if !b.Tiers.Has(tier) {
				continue
			}
			n++
			if told, ok := p.sink.resident[sinkKey{p.id, tier, b.Block.Key}]; !ok || told != b.Block {
				p.t.Errorf("%s in %s: the sink was told %v", b.Block.Key, tier, ok)
			}
		}
	}
	for k := range p.sink.resident {
		if k.ns == p.id {
			n--
		}
	}
	if n != 0 {
		p.t.Errorf("the pool has %d blocks more than the sink was told of", n)
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

// chain is n blocks of one sequence; chains of different seeds share nothing.
func chain(seed uint64, n int) []Block {
	var root kv.BlockKey
	binary.LittleEndian.PutUint64(root[:], seed)
	blocks := make([]Block, n)
	keyer := kv.NewKeyer()
	parent, seq := root, kv.SequenceHash(0)
	for i := range blocks {
		local := kv.LocalHash(seed<<32 + uint64(i) + 1)
		b := &blocks[i]
		*b = Block{
			Key: keyer.Next(parent, []uint32{uint32(i)}, nil).InGroup(0), Parent: parent,
			Local: local, Seq: kv.SequenceHash(local), Position: uint32(i), Seed: kv.HashSeed,
		}
		if i > 0 {
			b.ParentSeq, b.Seq = seq, kv.Chain(seq, local)
		}
		parent, seq = b.Key.Block(), b.Seq
	}
	return blocks
}

// content is what the version-th commit of a block fills it with.
func (p *testPool) content(b *Block, version uint64) []byte {
	data := make([]byte, p.BlockBytes())
	rng := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(b.Key[:]), version))
	for i := 0; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], rng.Uint64())
	}
	return data
}

// file finds a slot's extent file and offset, as a client does.
func (p *testPool) file(s Slot) (ExtentInfo, int64) {
	p.t.Helper()
	for _, e := range p.Extents() {
		if e.ID == s.Extent && s.Index < e.Slots {
			return e, int64(e.DataOffset + uint64(s.Index)*e.SlotBytes)
		}
	}
	p.t.Fatalf("slot %+v is in no extent", s)
	return ExtentInfo{}, 0
}

func (p *testPool) write(s Slot, data []byte) {
	p.t.Helper()
	e, off := p.file(s)
	if _, err := e.File.WriteAt(data, off); err != nil {
		p.t.Fatalf("write slot: %v", err)
	}
}

// read is a slot's bytes; its generation word must be the slot's.
func (p *testPool) read(s Slot) []byte {
	p.t.Helper()
	e, off := p.file(s)
	data, word := make([]byte, p.BlockBytes()), make([]byte, 8)
	if _, err := e.File.ReadAt(data, off); err != nil {
		p.t.Fatalf("read slot: %v", err)
	}
	if _, err := e.File.ReadAt(word, 8*int64(s.Index)); err != nil {
		p.t.Fatalf("read generation: %v", err)
	}
	if g := binary.LittleEndian.Uint64(word); g != s.Generation {
		p.t.Errorf("slot %+v has generation word %d", s, g)
	}
	return data
}

// store grants, fills and commits blocks for session 1 and returns how many
// were granted.
func (p *testPool) store(blocks []Block) int {
	p.t.Helper()
	res, err := p.Grant(1, blocks)
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
	if err := p.Commit(1, slots); err != nil {
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
	res, err := p.Lookup(ctx, 1, blocks)
	if err != nil {
		p.t.Fatalf("lookup: %v", err)
	}
	for i, s := range res.Slots {
		if !bytes.Equal(p.read(s), p.content(&blocks[i], 0)) {
			p.t.Errorf("block %d of the lookup has wrong bytes", i)
		}
	}
	if err := p.Unpin(1, res.Slots); err != nil {
		p.t.Errorf("unpin: %v", err)
	}
	return res.Sources
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
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); !cond(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the condition never held")
		}
	}
}
