package blockmgr

import (
	"bytes"
	"context"
	"os"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// twin is a pool that never runs out of room and has one tier: what was last
// committed for each key. The real pool may have forgotten any of it, but what
// it serves must be this.
type twin struct {
	*testPool
	version  map[kv.StoredKey]uint64
	next     uint64
	granted  map[SessionID][]filled
	pinned   map[SessionID][]pinned
	sessions []SessionID
	drawRun  func(*rapid.T) []Block
}

type filled struct {
	block   Block
	slot    Slot
	version uint64
}

type pinned struct {
	block Block
	slot  Slot
}

const (
	modelChains   = 4
	modelChainLen = 6
)

func drawRun(t *rapid.T) []Block {
	blocks := chain(rapid.Uint64Range(1, modelChains).Draw(t, "chain"), modelChainLen)
	first := 0
	// Now and then a run starts in the middle: its parents may be anywhere.
	if rapid.IntRange(0, 3).Draw(t, "middle") == 0 {
		first = rapid.IntRange(0, modelChainLen-1).Draw(t, "first")
	}
	return blocks[first:rapid.IntRange(first, modelChainLen).Draw(t, "end")]
}

func (m *twin) drawSession(t *rapid.T) SessionID {
	return rapid.SampledFrom(m.sessions).Draw(t, "session")
}

func (m *twin) Grant(t *rapid.T) {
	s, blocks := m.drawSession(t), m.drawRun(t)
	res, err := m.Pool.Grant(s, blocks, 0)
	if err != nil || len(res.Grants)+res.Present+res.Refused != len(blocks) {
		t.Fatalf("grant of %d: %+v, %v", len(blocks), res, err)
	}
	for _, g := range res.Grants {
		m.next++
		f := filled{block: blocks[g.Index], slot: g.Slot, version: m.next}
		m.write(f.slot, m.content(&f.block, f.version))
		m.granted[s] = append(m.granted[s], f)
	}
}

// takeGranted takes some of a session's granted slots.
func (m *twin) takeGranted(t *rapid.T) (SessionID, []filled, []Slot) {
	s := m.drawSession(t)
	n := rapid.IntRange(0, len(m.granted[s])).Draw(t, "n")
	taken := m.granted[s][:n]
	m.granted[s] = m.granted[s][n:]
	slots := make([]Slot, n)
	for i, f := range taken {
		slots[i] = f.slot
	}
	return s, taken, slots
}

func (m *twin) Commit(t *rapid.T) {
	s, taken, slots := m.takeGranted(t)
	if err := m.Pool.Commit(s, slots); err != nil {
		t.Fatalf("commit: %v", err)
	}
	for _, f := range taken {
		m.version[f.block.Key] = f.version
	}
}

func (m *twin) Abort(t *rapid.T) {
	s, _, slots := m.takeGranted(t)
	if err := m.Pool.Abort(s, slots); err != nil {
		t.Fatalf("abort: %v", err)
	}
}

func (m *twin) Lookup(t *rapid.T) {
	s, blocks := m.drawSession(t), m.drawRun(t)
	ctx, cancel := context.WithCancel(context.Background())
	if rapid.Bool().Draw(t, "hurried") {
		cancel()
	}
	defer cancel()
	res, err := m.Pool.Lookup(ctx, s, blocks)
	if err != nil || len(res.Slots)+res.Coming > len(blocks) || len(res.Sources) != len(res.Slots) {
		t.Fatalf("lookup of %d: %+v, %v", len(blocks), res, err)
	}
	for i, slot := range res.Slots {
		m.pinned[s] = append(m.pinned[s], pinned{blocks[i], slot})
	}
}

func (m *twin) Unpin(t *rapid.T) {
	s := m.drawSession(t)
	n := rapid.IntRange(0, len(m.pinned[s])).Draw(t, "n")
	var slots []Slot
	for _, p := range m.pinned[s][:n] {
		slots = append(slots, p.slot)
	}
	m.pinned[s] = m.pinned[s][n:]
	if err := m.Pool.Unpin(s, slots); err != nil {
		t.Fatalf("unpin: %v", err)
	}
}

func (m *twin) EndSession(t *rapid.T) {
	s := m.drawSession(t)
	var gone chan struct{}
	if rapid.Bool().Draw(t, "dying") {
		gone = make(chan struct{})
	}
	m.Pool.EndSession(s, gone)
	if gone != nil {
		close(gone)
	}
	delete(m.granted, s)
	delete(m.pinned, s)
	m.sessions[slices.Index(m.sessions, s)] = m.begin()
}

func (m *twin) Settle(t *rapid.T) { m.quiesce() }

// check runs after every operation.
func (m *twin) check(*rapid.T) {
	m.testPool.check()
	for _, s := range m.sessions {
		for _, p := range m.pinned[s] {
			if !bytes.Equal(m.read(p.slot), m.content(&p.block, m.version[p.block.Key])) {
				m.t.Errorf("a pinned slot of %s does not hold what was committed", p.block.Key)
			}
		}
	}
}

func TestPoolServesOnlyWhatWasCommitted(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"host only":     func(c *Config) { c.DiskBytes = 0 },
		"host and disk": func(*Config) {},
		"disk only":     func(c *Config) { c.HostBytes = 0 },
		"growing":       func(c *Config) { c.HostBytes, c.ExtentBytes = 3*hostBytes(3), hostBytes(3) },
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				dir, err := os.MkdirTemp("", "blockmgr-model-")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				cfg := Config{HostDir: dir + "/host", HostBytes: hostBytes(9), DiskDir: dir + "/disk", DiskBytes: 16 * testSlotBytes, ExtentBytes: hostBytes(16), MaxPinsPerSession: 12}
				change(&cfg)
				m := &twin{
					testPool: openTestPool(t, cfg), version: map[kv.StoredKey]uint64{},
					granted: map[SessionID][]filled{}, pinned: map[SessionID][]pinned{}, drawRun: drawRun,
				}
				defer m.finish()
				m.sessions = []SessionID{m.sid, m.begin()}
				t.Repeat(map[string]func(*rapid.T){
					"Grant": m.Grant, "Commit": m.Commit, "Abort": m.Abort, "Lookup": m.Lookup,
					"Unpin": m.Unpin, "EndSession": m.EndSession, "Settle": m.Settle, "": m.check,
				})
				m.quiesce()
			})
		})
	}
}

// Sessions storing, loading and dying at once: nobody reads a wrong byte, and
// nothing is lost track of.
func TestSessionsAtOnceReadOnlyCommittedBytes(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(24), DiskBytes: 48 * testSlotBytes, ExtentBytes: hostBytes(12)})
	p.EndSession(1, nil)
	var wg sync.WaitGroup
	for worker := range uint64(4) {
		wg.Go(func() {
			for round := range uint64(60) {
				s := SessionID(p.ids.Add(1))
				if err := p.BeginSession(s); err != nil {
					t.Errorf("session %d: %v", s, err)
					return
				}
				p.storeAndFind(t, s, chain(1+(worker+round)%10, 8))
				gone := make(chan struct{})
				p.EndSession(s, gone)
				close(gone)
			}
		})
	}
	wg.Wait()
	p.quiesce()
	waitFor(t, func() bool { return p.Stats().Host.Quarantined == 0 })
	st := p.Stats()
	if st.CorruptReads+st.ReadErrors+st.WriteErrors+st.MemoryErrors != 0 || st.Host.Granted+st.Host.Active+st.Pins+st.Sessions != 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%d host hits, %d disk hits, %d misses", st.HostHits, st.DiskHits, st.Misses)
}

// storeAndFind commits all but the last block it is granted and checks what a
// lookup pins, twice, so that a slot that changes hands under a pin shows.
func (p *testPool) storeAndFind(t *testing.T, s SessionID, blocks []Block) {
	res, err := p.Grant(s, blocks, 0)
	if err != nil {
		t.Errorf("grant: %v", err)
		return
	}
	var slots []Slot
	for _, g := range res.Grants {
		p.write(g.Slot, p.content(&blocks[g.Index], 0))
		slots = append(slots, g.Slot)
	}
	if n := len(slots); n > 1 {
		slots = slots[:n-1]
	}
	if err := p.Commit(s, slots); err != nil {
		t.Errorf("commit: %v", err)
	}
	found, err := p.Lookup(t.Context(), s, blocks)
	if err != nil {
		t.Errorf("lookup: %v", err)
		return
	}
	for range 2 {
		for i, slot := range found.Slots {
			if !bytes.Equal(p.read(slot), p.content(&blocks[i], 0)) {
				t.Errorf("session %d: wrong bytes", s)
			}
		}
	}
	slices.Reverse(found.Slots)
	if err := p.Unpin(s, found.Slots); err != nil {
		t.Errorf("unpin: %v", err)
	}
}
