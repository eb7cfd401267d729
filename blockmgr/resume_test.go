package blockmgr

import (
	"errors"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

func TestResumeGivesBackWhatIsNamedAndHeldAndFreesTheRest(t *testing.T) {
	d := die(t)
	p := openTestPool(t, d.cfg)
	defer p.finish()
	older := d.granted[1]
	older.Generation--
	g, pn, err := p.Resume(p.sid, d.session,
		[]Slot{d.granted[0], d.granted[0], older, {Extent: 99}}, []Slot{d.pinned[1], {Extent: 99}})
	if err != nil || !slices.Equal(g, d.granted[:1]) || !slices.Equal(pn, d.pinned[1:]) {
		t.Fatalf("resumed %+v and %+v, %v", g, pn, err)
	}
	p.check()
	st := p.Stats()
	if st.Resumed != 2 || st.ResumeRefused != 4 || st.PreviousSessions != 0 || len(p.m.Previous()) != 0 {
		t.Errorf("%+v", st)
	}
	if st.Pins != 1 || st.Host.Granted != 1 || st.Host.Quarantined != 0 {
		t.Errorf("%+v", st)
	}
	// The blocks before the resumed ones stay too.
	p.spares(10, 4, []Slot{d.granted[0], d.pinned[1]})

	// They are like any other grant and pin.
	p.write(g[0], p.content(&d.blocks[3], 0))
	if err := p.Commit(p.sid, g); err != nil {
		t.Fatalf("commit of a resumed grant: %v", err)
	}
	if err := p.Unpin(p.sid, pn); err != nil {
		t.Errorf("unpin of a resumed pin: %v", err)
	}
	if err := p.Unpin(p.sid, pn); !errors.Is(err, ErrBadSlot) {
		t.Errorf("unpinned twice: %v", err)
	}
	if got := sources(p.find(d.blocks[3:4])); got != "H" {
		t.Errorf("found %q of what was committed", got)
	}
	p.quiesce()
}

// Somebody else may have stored the block while the engine was away.
func TestResumedGrantOfABlockThatCameBackIsFreedWhenItsCopyHasEnded(t *testing.T) {
	d := die(t)
	p := openTestPool(t, d.cfg)
	defer p.finish()
	if n := p.store(d.blocks); n != 2 {
		t.Fatalf("%d blocks granted", n)
	}
	p.quiesce()
	g, _, err := p.Resume(p.sid, d.session, d.granted, nil)
	if err != nil || len(g) != len(d.granted) {
		t.Fatalf("resumed %+v, %v", g, err)
	}
	if st := p.Stats(); st.Host.Granted != 2 || st.Host.Inactive != 5 {
		t.Errorf("while the copies go on: %+v", st.Host)
	}
	if err := p.Commit(p.sid, g); err != nil {
		t.Fatal(err)
	}
	if st := p.Stats(); st.Host.Granted != 0 || st.Host.Inactive != 5 || st.Deduplicated != 2 {
		t.Errorf("after the commit: %+v", st)
	}
	if got := sources(p.find(d.blocks)); got != "HHHHH" {
		t.Errorf("found %q", got)
	}
}

// Its copy outlives this agent as well, and the next one must know of it.
func TestResumedGrantOfABlockThatCameBackIsResumedAgain(t *testing.T) {
	d := die(t)
	second := openTestPool(t, d.cfg)
	second.store(d.blocks)
	second.quiesce()
	if g, _, err := second.Resume(second.sid, d.session, d.granted, nil); err != nil || len(g) != 2 {
		t.Fatalf("resumed %+v, %v", g, err)
	}
	second.m.Abandon()
	p := openTestPool(t, d.cfg)
	defer p.finish()
	p.spares(10, 6, d.granted)
	g, _, err := p.Resume(p.sid, second.sid, d.granted, nil)
	if err != nil || !slices.Equal(g, d.granted) {
		t.Errorf("resumed %+v, %v", g, err)
	}
	p.spares(11, 6, d.granted)
}

func TestResumeOfWhatIsNotThereChangesNothing(t *testing.T) {
	d := die(t)
	d.cfg.HostBytes *= 2
	p := openTestPool(t, d.cfg)
	defer p.finish()
	other := p.openOther("other")
	for name, c := range map[string]struct {
		pool        *Pool
		session, of SessionID
	}{
		"a session that never was":      {p.Pool, p.sid, 999},
		"a session that is alive":       {p.Pool, p.sid, p.sid},
		"another namespace's session":   {other.Pool, other.sid, d.session},
		"by a session that is not here": {p.Pool, 999, d.session},
	} {
		if _, _, err := c.pool.Resume(c.session, c.of, d.granted, d.pinned); !errors.Is(err, ErrNoSession) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st := p.Stats(); st.PreviousSessions != 1 || st.Resumed != 0 || st.Host.Quarantined != 2 || len(p.m.Previous()) != 1 {
		t.Errorf("%+v", st)
	}
	if err := p.BeginSession(d.session); err == nil {
		t.Error("a session has the id of one that may still have processes")
	}
	p.check()
	other.check()
}

// An agent may be killed while it notes that the session of a dying connection is
// gone. What the engine still writes into must not be anybody else's then.
func TestTornSlotsThatResumeNamesWaitUntilTheProcessesAreGone(t *testing.T) {
	d := die(t)
	torn := []Slot{d.granted[0], d.pinned[1]}
	for _, s := range torn {
		tearRecord(t, d.cfg.HostDir, s)
	}
	p := openTestPool(t, d.cfg)
	g, pn, err := p.Resume(p.sid, d.session, d.granted, d.pinned)
	if err != nil || !slices.Equal(g, d.granted[1:]) || !slices.Equal(pn, d.pinned[:1]) {
		t.Fatalf("resumed %+v and %+v, %v", g, pn, err)
	}
	p.check()
	p.spares(10, 4, slices.Concat(d.granted, d.pinned))
	resumed := p.sid
	p.m.Abandon() // the copies outlive this agent as well

	p = openTestPool(t, d.cfg)
	defer p.finish()
	if _, _, err = p.Resume(p.sid, resumed, d.granted[1:], nil); err != nil {
		t.Fatal(err)
	}
	gone, heir := make(chan struct{}), p.sid
	p.sid = p.begin()
	p.spares(11, 5, append(torn, d.granted[1]))
	p.EndSession(heir, gone)
	p.spares(12, 5, append(torn, d.granted[1]))
	close(gone)
	waitFor(t, func() bool { return p.Stats().Host.Quarantined == 0 })
	p.spares(13, 8, nil)
}

// Nothing but a torn slot is left of the session.
func TestSessionThatResumedWaitsForItsProcessesForATornSlotAlone(t *testing.T) {
	d := die(t)
	tearRecord(t, d.cfg.HostDir, d.granted[0])
	p := openTestPool(t, d.cfg)
	if g, _, err := p.Resume(p.sid, d.session, d.granted[:1], nil); err != nil || len(g) != 0 {
		t.Fatalf("resumed %+v, %v", g, err)
	}
	heir := p.sid
	p.EndSession(heir, make(chan struct{}))
	p.sid = p.begin()
	p.spares(10, 7, d.granted[:1])
	other := p.sid
	p.m.Abandon()

	p = openTestPool(t, d.cfg)
	defer p.finish()
	p.m.Forget(other)
	p.spares(11, 7, d.granted[:1])
	p.m.Forget(heir)
	p.spares(12, 8, nil)
}

// A slot of which the record names no block was granted all the same.
func TestGrantWithoutABlockIsResumed(t *testing.T) {
	d := die(t)
	rewriteRecord(t, d.cfg.HostDir, d.granted[0], func(r *storage.Record) {
		*r = storage.Record{Namespace: r.Namespace, Generation: r.Generation, State: r.State, Session: r.Session}
	})
	p := openTestPool(t, d.cfg)
	defer p.finish()
	g, _, err := p.Resume(p.sid, d.session, d.granted, nil)
	if err != nil || !slices.Equal(g, d.granted) {
		t.Fatalf("resumed %+v, %v", g, err)
	}
	p.check()
	p.spares(10, 6, d.granted)
	if err := p.Commit(p.sid, g[:1]); err != nil {
		t.Fatal(err)
	}
	p.spares(11, 7, d.granted[1:])
}

// An engine that mixes its lists up may still touch all that it names.
func TestResumeFreesNothingThatIsNamed(t *testing.T) {
	d := die(t)
	rewriteRecord(t, d.cfg.HostDir, d.pinned[1], func(r *storage.Record) { r.State = storage.StateFilled })
	all := slices.Concat(d.granted, d.pinned)
	p := openTestPool(t, d.cfg)
	g, pn, err := p.Resume(p.sid, d.session, d.pinned, d.granted)
	if err != nil || len(g)+len(pn) != 0 {
		t.Fatalf("resumed %+v and %+v, %v", g, pn, err)
	}
	p.check()
	p.spares(10, 3, all) // the block before the granted ones stays too
	resumed := p.sid
	p.m.Abandon()

	p = openTestPool(t, d.cfg)
	defer p.finish()
	p.spares(11, 4, all)
	p.m.Forget(resumed)
	p.spares(12, 8, nil)
}

func TestResumedPinsMayExceedTheCapOfASession(t *testing.T) {
	d := die(t)
	d.cfg.MaxPinsPerSession = 1
	p := openTestPool(t, d.cfg)
	defer p.finish()
	named := append(slices.Clone(d.pinned), d.pinned[0])
	_, pn, err := p.Resume(p.sid, d.session, nil, named)
	if err != nil || !slices.Equal(pn, d.pinned) {
		t.Fatalf("resumed %+v, %v", pn, err)
	}
	if res, err := p.Lookup(t.Context(), p.sid, d.blocks[:1]); err != nil || len(res.Slots) != 0 {
		t.Errorf("pinned %+v more, %v", res, err)
	}
	p.spares(10, 6, d.pinned)
}
