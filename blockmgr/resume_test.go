package blockmgr

import (
	"errors"
	"slices"
	"testing"
)

func TestResumeGivesBackWhatIsNamedAndHeldAndFreesTheRest(t *testing.T) {
	d := die(t)
	p := openTestPool(t, d.cfg)
	defer p.finish()
	older := d.granted[1]
	older.Generation--
	g, pn, err := p.m.Resume(p.Pool, p.sid, d.session,
		[]Slot{d.granted[0], d.granted[0], older, d.pinned[0], {Extent: 99}}, []Slot{d.pinned[1], d.granted[1], {Extent: 99}})
	if err != nil || !slices.Equal(g, d.granted[:1]) || !slices.Equal(pn, d.pinned[1:]) {
		t.Fatalf("resumed %+v and %+v, %v", g, pn, err)
	}
	p.check()
	if st := p.Stats(); st.Resumed != 2 || st.Pins != 1 || st.Host.Granted != 1 || st.Host.Quarantined != 0 || st.FormerSessions != 0 || len(p.m.Former()) != 0 {
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
	g, _, err := p.m.Resume(p.Pool, p.sid, d.session, d.granted, nil)
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
	if g, _, err := second.m.Resume(second.Pool, second.sid, d.session, d.granted, nil); err != nil || len(g) != 2 {
		t.Fatalf("resumed %+v, %v", g, err)
	}
	second.m.Abandon()
	p := openTestPool(t, d.cfg)
	defer p.finish()
	p.spares(10, 6, d.granted)
	g, _, err := p.m.Resume(p.Pool, p.sid, second.sid, d.granted, nil)
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
		if _, _, err := p.m.Resume(c.pool, c.session, c.of, d.granted, d.pinned); !errors.Is(err, ErrNoSession) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st := p.Stats(); st.FormerSessions != 1 || st.Resumed != 0 || st.Host.Quarantined != 2 || len(p.m.Former()) != 1 {
		t.Errorf("%+v", st)
	}
	if err := p.BeginSession(d.session); err == nil {
		t.Error("a session has the id of one that may still have processes")
	}
	p.check()
	other.check()
}
