package blockmgr

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/storagetest"
)

// sessionSlots is what a session's processes may still touch.
type sessionSlots struct {
	granted []filled
	pinned  []pinned
	// torn were granted, and their records were torn by the death of an agent.
	torn []filled
}

// writing is what its copies may go into.
func (s *sessionSlots) writing() []filled { return slices.Concat(s.granted, s.torn) }

// survivor is a node whose agent is killed and started again while its engines
// live on. Every block has one right content, which is written just before
// Commit; whatever else is written into a granted slot is garbage.
type survivor struct {
	*testPool
	cfg           Config
	reads, writes atomic.Uint32 // the storagetest.Fault of every third operation
	live          map[SessionID]*sessionSlots
	// dying sessions have ended and their processes have not; earlier are those of
	// earlier agents.
	dying   map[SessionID]chan struct{}
	ended   map[SessionID]*sessionSlots
	earlier map[SessionID]*sessionSlots
	// flipped slots hold a block that is bad, which the first lookup finds out.
	flipped map[Slot]bool
}

const (
	rightBytes = 0
	garbage    = 1
)

func newSurvivor(t *rapid.T, dir string, disk bool) *survivor {
	m := &survivor{cfg: Config{HostDir: dir + "/host", HostBytes: hostBytes(10), ExtentBytes: hostBytes(5)}}
	if disk {
		m.cfg.DiskDir, m.cfg.DiskBytes = dir+"/disk", 16*testSlotBytes
		if rapid.Bool().Draw(t, "encrypted") {
			m.cfg.DiskKey = diskKey(t, 1)
		}
	}
	m.cfg.WrapDisk = faults(func(op storagetest.Op, n int) storagetest.Fault {
		switch {
		case n%3 != 0:
		case op == storagetest.OpRead:
			return storagetest.Fault(m.reads.Load())
		case op == storagetest.OpWrite:
			return storagetest.Fault(m.writes.Load())
		}
		return storagetest.FaultNone
	}, isExtent)
	m.dying, m.ended = map[SessionID]chan struct{}{}, map[SessionID]*sessionSlots{}
	m.earlier = map[SessionID]*sessionSlots{}
	m.flipped = map[Slot]bool{}
	m.start(t)
	return m
}

// start opens the node's directories with a new agent and two new sessions.
func (m *survivor) start(t *rapid.T) {
	m.testPool = openTestPool(t, m.cfg)
	m.live = map[SessionID]*sessionSlots{m.sid: {}, m.begin(): {}}
}

// draw picks one of some sessions.
func draw[T any](t *rapid.T, of map[SessionID]T) SessionID {
	if len(of) == 0 {
		t.Skip("there is none")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(of))).Draw(t, "session")
}

// split takes some off the front.
func split[T any](t *rapid.T, from *[]T) []T {
	n := rapid.IntRange(0, len(*from)).Draw(t, "n")
	taken := (*from)[:n]
	*from = (*from)[n:]
	return taken
}

func slotsOfGrants(of []filled) (slots []Slot) {
	for _, f := range of {
		slots = append(slots, f.slot)
	}
	return slots
}

func slotsOfPins(of []pinned) (slots []Slot) {
	for _, p := range of {
		slots = append(slots, p.slot)
	}
	return slots
}

func (m *survivor) Grant(t *rapid.T) {
	s, blocks := draw(t, m.live), drawRun(t)
	res, err := m.Pool.Grant(s, blocks, rapid.Uint32Range(0, 2).Draw(t, "priority"))
	if err != nil || len(res.Grants)+res.Present+res.Refused != len(blocks) {
		t.Fatalf("grant of %d: %+v, %v", len(blocks), res, err)
	}
	for _, g := range res.Grants {
		m.write(g.Slot, m.content(&blocks[g.Index], garbage))
		m.live[s].granted = append(m.live[s].granted, filled{block: blocks[g.Index], slot: g.Slot})
	}
}

func (m *survivor) Commit(t *rapid.T) {
	s := draw(t, m.live)
	taken := split(t, &m.live[s].granted)
	for _, f := range taken {
		m.write(f.slot, m.content(&f.block, rightBytes))
	}
	if err := m.Pool.Commit(s, slotsOfGrants(taken)); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func (m *survivor) Abort(t *rapid.T) {
	s := draw(t, m.live)
	if err := m.Pool.Abort(s, slotsOfGrants(split(t, &m.live[s].granted))); err != nil {
		t.Fatalf("abort: %v", err)
	}
}

func (m *survivor) Lookup(t *rapid.T) {
	s, blocks := draw(t, m.live), drawRun(t)
	ctx, cancel := context.WithCancel(context.Background())
	if rapid.Bool().Draw(t, "hurried") {
		cancel()
	}
	defer cancel()
	res, err := m.Pool.Lookup(ctx, s, blocks)
	if err != nil || len(res.Slots)+res.Coming > len(blocks) {
		t.Fatalf("lookup of %d: %+v, %v", len(blocks), res, err)
	}
	for i, slot := range res.Slots {
		m.live[s].pinned = append(m.live[s].pinned, pinned{blocks[i], slot})
	}
}

func (m *survivor) Unpin(t *rapid.T) {
	s := draw(t, m.live)
	if err := m.Pool.Unpin(s, slotsOfPins(split(t, &m.live[s].pinned))); err != nil {
		t.Fatalf("unpin: %v", err)
	}
}

// EndSession ends a session in order, or while its processes still write.
func (m *survivor) EndSession(t *rapid.T) {
	s := draw(t, m.live)
	// Without grants there is nothing to wait for: a late load sees that the slot's
	// generation has changed.
	waits := len(m.live[s].writing()) > 0 && rapid.Bool().Draw(t, "dying")
	var gone chan struct{}
	if waits {
		gone = make(chan struct{})
		m.dying[s] = gone
		m.ended[s] = &sessionSlots{granted: m.live[s].granted, torn: m.live[s].torn}
	}
	if m.Pool.EndSession(s, gone) != waits {
		t.Fatalf("session %d waits for its processes: want %v", s, waits)
	}
	delete(m.live, s)
	m.live[m.begin()] = &sessionSlots{}
}

// Exit ends the processes of a dying session.
func (m *survivor) Exit(t *rapid.T) {
	s := draw(t, m.dying)
	close(m.dying[s])
	for _, slot := range slotsOfGrants(m.ended[s].granted) {
		waitFor(t, func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			_, there := m.slots.Host.Lookup(slot)
			return !there
		})
	}
	waitFor(t, func() bool {
		return !slices.ContainsFunc(m.broker.host.Sessions().All(), func(r storage.SessionRecord) bool {
			return r.Session == uint64(s)
		})
	})
	delete(m.dying, s)
	delete(m.ended, s)
}

// LateWrite is a copy that goes on although its session has ended or its agent
// has died.
func (m *survivor) LateWrite(t *rapid.T) {
	late := maps.Clone(m.earlier)
	maps.Copy(late, m.ended)
	for _, f := range late[draw(t, late)].writing() {
		m.write(f.slot, m.content(&f.block, garbage+1))
	}
}

// Rival stores the blocks that a earlier session was granted.
func (m *survivor) Rival(t *rapid.T) {
	s := draw(t, m.live)
	for _, f := range m.earlier[draw(t, m.earlier)].granted {
		res, err := m.Pool.Grant(s, []Block{f.block}, 0)
		if err != nil {
			t.Fatalf("grant: %v", err)
		}
		for _, g := range res.Grants {
			m.write(g.Slot, m.content(&f.block, rightBytes))
			if err := m.Pool.Commit(s, []Slot{g.Slot}); err != nil {
				t.Fatalf("commit: %v", err)
			}
		}
	}
}

func (m *survivor) Fault(t *rapid.T) {
	all := []storagetest.Fault{
		storagetest.FaultNone, storagetest.FaultNone, storagetest.FaultEIO, storagetest.FaultShort, storagetest.FaultTorn, storagetest.FaultFlip,
	}
	m.reads.Store(uint32(rapid.SampledFrom(all).Draw(t, "reads")))
	m.writes.Store(uint32(rapid.SampledFrom(all).Draw(t, "writes")))
	m.retryDisk()
}

func (m *survivor) Settle(*rapid.T) { m.quiesce() }

// Die kills the agent. Its sessions' processes live on.
func (m *survivor) Die(t *rapid.T) {
	if rapid.Bool().Draw(t, "settled") {
		m.quiesce()
	}
	sealed := m.sealed()
	m.m.Abandon()
	maps.Copy(m.earlier, m.live)
	m.orphan()
	m.damage(t, sealed)
	m.start(t)
	m.checkRecovered(sealed)
}

// Close ends the agent in order: only processes of sessions that have ended
// already may still touch a slot.
func (m *survivor) Close(t *rapid.T) {
	m.quiesce()
	sealed := m.sealed()
	m.finish()
	m.orphan()
	m.start(t)
	m.checkRecovered(sealed)
}

// orphan makes dying sessions earlier ones.
func (m *survivor) orphan() {
	maps.Copy(m.earlier, m.ended)
	clear(m.dying)
	clear(m.ended)
}

// Forget ends the processes of a earlier session.
func (m *survivor) Forget(t *rapid.T) {
	s := draw(t, m.earlier)
	m.m.Forget(s)
	delete(m.earlier, s)
}

// Resume brings a earlier session back as a live one, which remembers some of
// what it had.
func (m *survivor) Resume(t *rapid.T) {
	was, s := draw(t, m.earlier), draw(t, m.live)
	f := m.earlier[was]
	granted, pins := split(t, &f.granted), split(t, &f.pinned)
	named := slices.Concat(slotsOfGrants(granted), slotsOfGrants(f.torn))
	var wantPinned []pinned
	m.mu.Lock()
	for _, p := range pins {
		// Unless it was not sealed yet when the agent died.
		if ref, ok := m.slots.Host.Lookup(p.slot); ok && m.slots.Host.Slot(ref).Resident() {
			wantPinned = append(wantPinned, p)
		}
	}
	m.mu.Unlock()
	g, p, err := m.Pool.Resume(s, was, named, slotsOfPins(pins))
	if err != nil || !slices.Equal(g, slotsOfGrants(granted)) || !slices.Equal(p, slotsOfPins(wantPinned)) {
		t.Errorf("resumed %v and %v, want %v and %v: %v", g, p, slotsOfGrants(granted), slotsOfPins(wantPinned), err)
	}
	m.live[s].granted = append(m.live[s].granted, granted...)
	m.live[s].torn = append(m.live[s].torn, f.torn...)
	m.live[s].pinned = append(m.live[s].pinned, wantPinned...)
	delete(m.earlier, was)
}

func TestNothingIsLostOrServedWrongWhenAgentsDieUnderLiveEngines(t *testing.T) {
	for where, disk := range map[string]bool{"host": false, "host and disk": true} {
		t.Run(where, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				dir, err := os.MkdirTemp("", "blockmgr-model-")
				if err != nil {
					t.Fatalf("%v", err)
				}
				defer os.RemoveAll(dir)
				m := newSurvivor(t, dir, disk)
				defer func() { m.finish() }()
				t.Repeat(map[string]func(*rapid.T){
					"Grant": m.Grant, "Commit": m.Commit, "Abort": m.Abort, "Lookup": m.Lookup, "Unpin": m.Unpin,
					"EndSession": m.EndSession, "Exit": m.Exit, "LateWrite": m.LateWrite, "Fault": m.Fault, "Settle": m.Settle,
					"Die": m.Die, "Close": m.Close, "Forget": m.Forget, "Resume": m.Resume, "Rival": m.Rival, "": m.check,
				})
				m.quiesce()
			})
		})
	}
}
