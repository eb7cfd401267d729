package blockmgr

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// death is what a killed agent leaves in a host tier of 8 slots: two granted
// ones, two sealed and pinned ones, one sealed one that nobody uses.
type death struct {
	cfg             Config
	session         SessionID
	blocks          []Block
	granted, pinned []Slot
}

func die(t *testing.T) death {
	d := death{cfg: restartConfig(t, false), blocks: chain(1, 5)}
	p := openTestPool(t, d.cfg)
	d.session = p.begin()
	p.store(d.blocks[:3])
	p.quiesce()
	d.pinned = p.pin(d.session, d.blocks[:2])
	d.granted = p.grant(d.session, d.blocks[3:])
	p.EndSession(p.sid, nil)
	p.m.Abandon()
	return d
}

// same reports whether two names are of the same memory, at whatever generation.
func same(a, b Slot) bool { return a.Extent == b.Extent && a.Index == b.Index }

// fill grants as many new blocks as there is room for and tells their slots.
func (p *testPool) fill(seed uint64) []Slot {
	p.t.Helper()
	var slots []Slot
	for i := range uint64(16) {
		res, err := p.Grant(p.sid, chain(seed<<8+i, 1), 0)
		if err != nil {
			p.t.Fatalf("grant: %v", err)
		}
		for _, g := range res.Grants {
			slots = append(slots, g.Slot)
		}
	}
	p.check()
	return slots
}

// spares checks that the pool gives n slots to new blocks and no held one.
func (p *testPool) spares(seed uint64, n int, held []Slot) {
	p.t.Helper()
	got := p.fill(seed)
	if len(got) != n {
		p.t.Errorf("%d slots granted, want %d", len(got), n)
	}
	for _, s := range got {
		if slices.ContainsFunc(held, func(h Slot) bool { return same(s, h) }) {
			p.t.Errorf("slot %+v is granted while a process of an earlier session may touch it", s)
		}
	}
	if err := p.Abort(p.sid, got); err != nil {
		p.t.Errorf("abort: %v", err)
	}
}

func TestSlotsOfAFormerSessionWaitUntilItIsForgotten(t *testing.T) {
	d := die(t)
	p := openTestPool(t, d.cfg)
	defer p.finish()
	formers := p.m.Previous()
	if len(formers) != 1 || formers[0].Session != d.session || formers[0].Namespace != p.NamespaceID() {
		t.Fatalf("former sessions %+v", formers)
	}
	st := p.Stats()
	if st.PreviousSessions != 1 || st.Host.Quarantined != 2 || st.Host.Active != 2 || st.Host.Inactive != 1 {
		t.Errorf("%+v", st)
	}
	if got := sources(p.find(d.blocks)); got != "HHH" {
		t.Errorf("found %q", got)
	}
	p.spares(10, 4, slices.Concat(d.granted, d.pinned))
	p.m.Forget(d.session)
	p.m.Forget(d.session)
	st = p.Stats()
	if st.PreviousSessions != 0 || st.Host.Quarantined != 0 || st.Host.Active != 0 || len(p.m.Previous()) != 0 {
		t.Errorf("after forget: %+v", st)
	}
	p.spares(11, 8, nil)
}

func TestFormerSessionsNameTheirProcesses(t *testing.T) {
	cfg := restartConfig(t, false)
	first := openTestManager(t, cfg).openOther("test")
	procs := []Process{{PID: 100, Start: 5}, {PID: 101, Start: 6}}
	if err := first.BeginSession(7, procs[0]); err != nil {
		t.Fatal(err)
	}
	if err := first.AddProcess(7, procs[1]); err != nil {
		t.Fatal(err)
	}
	first.EndSession(first.sid, nil)
	first.m.Abandon()
	p := openTestManager(t, cfg)
	defer p.m.Close()
	if f := p.m.Previous(); len(f) != 1 || !slices.Equal(f[0].Processes, procs) || f[0].Foreign {
		t.Errorf("%+v", f)
	}
}

func TestSessionThatEndsInOrderLeavesNothing(t *testing.T) {
	cfg := restartConfig(t, false)
	first := openTestPool(t, cfg)
	first.store(chain(1, 2))
	first.quiesce()
	first.pin(first.sid, chain(1, 2))
	first.grant(first.sid, chain(2, 2))
	first.EndSession(first.sid, nil)
	first.m.Abandon()
	p := openTestPool(t, cfg)
	defer p.finish()
	if st := p.Stats(); st.PreviousSessions != 0 || st.Host.Inactive != 2 || st.Host.Free != 6 {
		t.Errorf("%+v", st)
	}
}

// The processes of a session that ended may still copy when the agent dies.
func TestSlotsOfADyingSessionWaitInTheNextAgentToo(t *testing.T) {
	d := death{cfg: restartConfig(t, false)}
	first := openTestPool(t, d.cfg)
	d.session = first.begin()
	d.granted = first.grant(d.session, chain(1, 3))
	first.EndSession(d.session, make(chan struct{}))
	first.EndSession(first.sid, nil)
	first.m.Abandon()
	p := openTestPool(t, d.cfg)
	defer p.finish()
	p.spares(10, 5, d.granted)
	p.m.Forget(d.session)
	p.spares(11, 8, nil)
}

// A record that the agent's death tore could have been anybody's grant.
func TestTornRecordsWaitForAllFormerSessions(t *testing.T) {
	cfg := restartConfig(t, false)
	first := openTestPool(t, cfg)
	blocks := chain(1, 4)
	first.store(blocks)
	first.quiesce()
	torn := []Slot{first.hostLocation(blocks[1].Key).Slot, first.hostLocation(blocks[3].Key).Slot}
	one, two := first.sid, first.begin()
	first.m.Abandon()
	for _, s := range torn {
		tearRecord(t, cfg.HostDir, s)
	}

	p := openTestPool(t, cfg)
	if got := p.tiersOf(blocks); got != "H-H-" {
		t.Errorf("recovered %q", got)
	}
	p.spares(10, 6, torn)
	p.m.Forget(one)
	p.spares(11, 6, torn)
	// The next agent finds them as they were.
	third := p.sid
	p.m.Abandon()
	p = openTestPool(t, cfg)
	defer p.finish()
	p.spares(12, 6, torn)
	p.m.Forget(two)
	p.spares(13, 6, torn)
	p.m.Forget(third)
	if st := p.Stats(); st.Host.Quarantined != 0 || st.Host.Free != 8 {
		t.Errorf("%+v", st.Host)
	}
	p.spares(14, 8, nil)
}

func TestTornRecordIsFreeAtOnceWithoutFormerSessions(t *testing.T) {
	cfg := restartConfig(t, false)
	first := openTestPool(t, cfg)
	first.store(chain(1, 1))
	first.quiesce()
	slot := first.hostLocation(chain(1, 1)[0].Key).Slot
	first.EndSession(first.sid, nil)
	first.finish()
	tearRecord(t, cfg.HostDir, slot)
	p := openTestPool(t, cfg)
	defer p.finish()
	if st := p.Stats(); st.Host.Free != 8 {
		t.Errorf("%+v", st.Host)
	}
	for _, s := range p.grant(p.sid, chain(2, 8)) {
		if same(s, slot) && s.Generation <= slot.Generation {
			t.Errorf("granted at generation %d, which clients have seen", s.Generation)
		}
	}
}

func TestFormerSessionsOutliveTheNextAgentToo(t *testing.T) {
	for name, between := range map[string]func(t *testing.T, cfg Config) (left []SessionID){
		"which had no pool": func(t *testing.T, cfg Config) []SessionID {
			openTestManager(t, cfg).m.Abandon()
			return nil
		},
		"which had a pool": func(t *testing.T, cfg Config) []SessionID {
			p := openTestPool(t, cfg)
			p.store(chain(7, 1))
			p.quiesce()
			p.m.Abandon()
			return []SessionID{p.sid}
		},
		"which closed": func(t *testing.T, cfg Config) []SessionID {
			openTestPool(t, cfg).finish()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := die(t)
			more := between(t, d.cfg)
			p := openTestPool(t, d.cfg)
			defer p.finish()
			if n := len(p.m.Previous()); n != 1+len(more) {
				t.Errorf("%d former sessions", n)
			}
			p.spares(10, 4, slices.Concat(d.granted, d.pinned))
			g, pn, err := p.Resume(p.sid, d.session, d.granted, d.pinned)
			if err != nil || len(g) != 2 || len(pn) != 2 {
				t.Errorf("resumed %+v and %+v, %v", g, pn, err)
			}
			for _, s := range more {
				p.m.Forget(s)
			}
			p.EndSession(p.sid, nil)
			p.sid = p.begin()
			p.spares(11, 8, nil)
		})
	}
}

// What a session held is free in a pool that is opened after it was forgotten,
// and the marks that it left on its slots mean nothing for the session that has
// its bit now.
func TestForgottenSessionHoldsNothingInAPoolOpenedLater(t *testing.T) {
	d := die(t)
	m := openTestManager(t, d.cfg)
	m.m.Forget(d.session)
	p := m.openOther("test")
	p.check()
	if st := p.Stats(); st.Host.Quarantined != 0 || st.Host.Active != 0 || st.Host.Inactive != 3 {
		t.Errorf("%+v", st.Host)
	}
	p.spares(10, 8, nil)
	p.m.Abandon()

	last := openTestPool(t, d.cfg)
	defer last.finish()
	last.check()
	if st := last.Stats(); st.Host.Active != 0 || st.Host.Quarantined != 0 {
		t.Errorf("%+v", st.Host)
	}
}

// A slot whose block is lost although a former session has it pinned is out of
// use until that one is gone.
func TestUnsealedSlotPinnedByAFormerSessionWaitsForIt(t *testing.T) {
	d := die(t)
	rewriteRecord(t, d.cfg.HostDir, d.pinned[1], func(r *storage.Record) { r.State = storage.StateFilled })
	p := openTestPool(t, d.cfg)
	defer p.finish()
	if got := p.tiersOf(d.blocks); got != "H-H--" {
		t.Errorf("recovered %q", got)
	}
	p.spares(10, 4, slices.Concat(d.granted, d.pinned))
	_, pn, err := p.Resume(p.sid, d.session, nil, d.pinned)
	if err != nil || !slices.Equal(pn, d.pinned[:1]) {
		t.Errorf("resumed pins %+v, %v", pn, err)
	}
	// The engine may still load from what it named, for what that is worth.
	p.spares(11, 6, d.pinned)
	if err := p.Unpin(p.sid, d.pinned[1:]); err != nil {
		t.Errorf("unpin of what was named: %v", err)
	}
	p.spares(12, 7, d.pinned[:1])
}

// Extents that a former session may touch do not go to other namespaces.
func TestExtentsOfFormerSessionsAreNotYielded(t *testing.T) {
	d := die(t)
	m := openTestManager(t, d.cfg)
	defer m.m.Close()
	newcomer := m.openOther("other")
	if newcomer.Enabled() {
		t.Error("an extent was taken that a former session's processes may touch")
	}
	p, err := m.m.Pool(testNamespace("test"))
	if err != nil {
		t.Fatal(err)
	}
	if st := p.Stats(); st.RecoveredHost != 3 || p.yield(p.slots.Host.Level) {
		t.Errorf("%+v", st)
	}
	m.m.Forget(d.session)
	newcomer.store(chain(1, 1))
	waitFor(t, newcomer.Enabled)
	newcomer.quiesce()
	if got := newcomer.store(chain(1, 1)); got != 1 || p.Stats().Host.Capacity != 0 {
		t.Errorf("%d granted, %+v", got, p.Stats().Host)
	}
	newcomer.quiesce()
	if got := sources(newcomer.find(chain(1, 1))); got != "H" {
		t.Errorf("found %q", got)
	}
}
