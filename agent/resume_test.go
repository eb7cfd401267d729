package agent_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// previous is an engine, this process, that had a session with an agent that was
// killed: it had stored blocks, pinned them, and was copying into granted slots.
type previous struct {
	cfg     agent.Config
	client  *proto.SchedulerClient // of the killed agent; its mappings live
	welcome proto.Welcome
	held    proto.Held
}

const (
	storedBlocks  = 3 // prompt 1: stored, sealed and pinned
	grantedBlocks = 4 // prompt 2: granted, not committed
)

// killedAgent makes a previous session.
func killedAgent(t *testing.T) *previous {
	t.Helper()
	return killedAgentOf(t, testConfig(t))
}

// killedAgentOf makes a previous session of an agent with a configuration.
func killedAgentOf(t *testing.T, cfg agent.Config) *previous {
	t.Helper()
	a := startAgentChild(t, cfg)
	c := a.client.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, storedBlocks)
	a.waitQuiet(t)
	a.client.Worker(t, c, 1)
	f := &previous{cfg: cfg, client: c, welcome: c.Welcome()}
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, storedBlocks)
	f.held.Pinned = agenttest.Pin(t, c, r, storedBlocks)
	r = proto.RequestID{ID: 3}
	agenttest.Open(t, c, r, 2, grantedBlocks)
	f.held.Granted = agenttest.Grant(t, c, r, 0, grantedBlocks)
	a.kill()
	<-c.Done()
	return f
}

// finish writes the rest of the granted blocks through the old mapping.
func (f *previous) finish(t *testing.T) {
	t.Helper()
	for i, s := range f.held.Granted {
		agenttest.Fill(t, f.client, s, 2, i)
	}
}

func TestEngineThatResumesGoesOnAsIfTheAgentHadNotDied(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	c := a.Scheduler(t, 1)
	if s := a.Stats(); s.Engines.Previous != 1 || s.Pools[0].Host.Quarantined != grantedBlocks || s.Pools[0].Host.Active != storedBlocks {
		t.Errorf("before RESUME: %d previous sessions, %+v", s.Engines.Previous, s.Pools[0].Host)
	}
	kept, err := c.Resume(t.Context(), f.welcome, f.held)
	if d := cmp.Diff(f.held, kept); err != nil || d != "" {
		t.Fatalf("error %v (-held +kept):\n%s", err, d)
	}
	f.finish(t) // the copies went on meanwhile
	for i, s := range kept.Pinned {
		if err := agenttest.CheckSlot(c, s, 1, i); err != nil {
			t.Error(err)
		}
		if err := agenttest.CheckSlot(f.client, s, 1, i); err != nil { // the old mapping is of the same file
			t.Error(err)
		}
	}
	id := proto.RequestID{ID: proto.ResumedRequest}
	agenttest.NoError(t, c.Commit(t.Context(), id, kept.Granted[:3]))
	agenttest.NoError(t, c.Abort(id, kept.Granted[3:]))
	agenttest.NoError(t, c.Release(id, 0, storedBlocks-1))
	a.WantFound(t, c, 2, 3)
	agenttest.Eventually(t, "one pin is left", func() bool { return a.Stats().Pools[0].Pins == 1 })
	s := a.Stats()
	if h := s.Pools[0].Host; h.Granted != 0 || h.Quarantined != 0 {
		t.Errorf("after the copies: %+v", h)
	}
	if e := s.Engines; e.Previous != 0 || e.Resumed != 1 || e.ResumedGrants != grantedBlocks || e.ResumedPins != storedBlocks {
		t.Errorf("counted %+v", e)
	}
	agenttest.CloseRequest(t, c, id)
	agenttest.Eventually(t, "the last pin drops", func() bool { return a.Stats().Pools[0].Pins == 0 })
}

// The scheduler comes back first. When it goes again its workers, which have not
// connected yet, may still be copying.
func TestProcessesOfAPreviousSessionAreWaitedForAfterResume(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	c := a.Scheduler(t, 1)
	if _, err := c.Resume(t.Context(), f.welcome, f.held); err != nil {
		t.Fatal(err)
	}
	c.Close()
	agenttest.Eventually(t, "the session ends", func() bool { return a.Stats().Sessions == 0 })
	if s := a.Stats(); s.Pools[0].Host.Quarantined != grantedBlocks || s.Engines.AwaitingExit != 1 {
		t.Errorf("%d slots in quarantine, %d sessions wait", s.Pools[0].Host.Quarantined, s.Engines.AwaitingExit)
	}
}

func TestResumeOfNothingKeepsNothing(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	nonce := a.Scheduler(t, 2).Welcome().AgentNonce
	for name, w := range map[string]proto.Welcome{
		"no session":            {Session: 5, AgentNonce: 6},
		"this agent's own life": {Session: f.welcome.Session, AgentNonce: nonce},
	} {
		c := a.Scheduler(t, 1)
		kept, err := c.Resume(t.Context(), w, f.held)
		if d := cmp.Diff(proto.Held{}, kept); err != nil || d != "" {
			t.Errorf("%s: error %v (-want +kept):\n%s", name, err, d)
		}
		if _, err = c.Resume(t.Context(), w, f.held); err == nil {
			t.Errorf("%s: RESUME came twice", name)
		} else {
			agenttest.WantRefused(t, err, proto.CodeState)
		}
		agenttest.Bye(t, c)
	}
	if n := a.Stats().Engines.Previous; n != 1 {
		t.Errorf("%d previous sessions are left, want the one that was not named", n)
	}
}

func TestResumeIsRefusedToStrangers(t *testing.T) {
	cfg := testConfig(t)
	first := startAgentChild(t, cfg)
	engine, session := first.startHolder(t)
	first.kill()
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	_, err := c.Resume(t.Context(), proto.Welcome{Session: session}, proto.Held{})
	agenttest.WantRefused(t, err, proto.CodeState) // another process
	h := agenttest.Hello(2)
	h.Namespace.Weights = "other"
	other, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: cfg.Socket, Hello: h})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = other.Resume(t.Context(), proto.Welcome{Session: session}, proto.Held{})
	agenttest.WantRefused(t, err, proto.CodeNamespace)
	twice := []proto.Slot{{Index: 1, Generation: 2}, {Index: 1, Generation: 2}}
	_, err = c.Resume(t.Context(), proto.Welcome{Session: session}, proto.Held{Granted: twice})
	agenttest.WantRefused(t, err, proto.CodeRange)
	if s := a.Stats(); s.Engines.Previous != 1 || s.Pools[0].Host.Quarantined+s.Pools[1].Host.Quarantined != 4 {
		t.Errorf("a refused RESUME changed something: %+v", s.Engines)
	}
	engine.kill()
	agenttest.Eventually(t, "the engine's slots are free", func() bool {
		s := a.Stats()
		return s.Engines.Previous == 0 && s.Pools[0].Host.Quarantined+s.Pools[1].Host.Quarantined == 0
	})
}

func TestSlotsOfAnEngineThatDiedBetweenTwoAgentsAreFree(t *testing.T) {
	cfg := testConfig(t)
	first := startAgentChild(t, cfg)
	engine, _ := first.startHolder(t)
	first.kill()
	engine.kill()
	a := startAgent(t, cfg)
	a.Scheduler(t, 1)
	agenttest.Eventually(t, "the engine's slots are free", func() bool {
		s := a.Stats()
		return s.Engines.Previous == 0 && s.Pools[0].Host.Quarantined == 0
	})
}

func TestResumedRequestCannotBeOpened(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.RawScheduler(t, 1)
	agenttest.Send(t, c, proto.TypeOpen, 0, &proto.Open{Request: proto.ResumedRequest})
	agenttest.WantError(t, c, 0, proto.CodeRange)
	for _, m := range []struct {
		t    proto.Type
		corr uint32
		m    proto.Message
	}{
		{proto.TypeCommit, 1, &proto.SlotList{Request: proto.ResumedRequest, Slots: make([]byte, 16)}},
		{proto.TypeRelease, 0, &proto.Range{Request: proto.ResumedRequest, Count: 1}},
		{proto.TypeClose, 0, &proto.Close{Request: proto.ResumedRequest}},
	} {
		agenttest.Send(t, c, m.t, m.corr, m.m)
		agenttest.WantError(t, c, m.corr, proto.CodeNotFound)
	}
}

// An agent that is stopped ends its sessions; what they were granted may still be
// written to.
func TestGrantsOutliveAnAgentThatIsStopped(t *testing.T) {
	cfg := testConfig(t)
	first := startAgent(t, cfg)
	c := first.Scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, c, r, 1, 2)
	held := proto.Held{Granted: agenttest.Grant(t, c, r, 0, 2)}
	first.stop()
	<-c.Done()
	a := startAgent(t, cfg)
	again := a.Scheduler(t, 1)
	if s := a.Stats(); s.Engines.Previous != 1 || s.Pools[0].Host.Quarantined != 2 {
		t.Errorf("%d previous sessions, %d slots in quarantine", s.Engines.Previous, s.Pools[0].Host.Quarantined)
	}
	for i, s := range held.Granted {
		agenttest.Fill(t, c, s, 1, i)
	}
	kept, err := again.Resume(t.Context(), c.Welcome(), held)
	if d := cmp.Diff(held, kept); err != nil || d != "" {
		t.Fatalf("error %v (-held +kept):\n%s", err, d)
	}
	agenttest.NoError(t, again.Commit(t.Context(), proto.RequestID{ID: proto.ResumedRequest}, kept.Granted))
	a.WantFound(t, again, 1, 2)
}

// Another engine may store the same blocks before the first one resumes. Its
// copies into the slots that it names go on all the same.
func TestResumedSlotsWhoseBlocksSomebodyStoredMeanwhileAreGivenToNobody(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	other := a.Scheduler(t, 2)
	agenttest.StorePrompt(t, other, proto.RequestID{ID: 1}, 2, grantedBlocks)
	c := a.Scheduler(t, 1)
	kept, err := c.Resume(t.Context(), f.welcome, f.held)
	if err != nil {
		t.Fatal(err)
	}
	f.finish(t) // the copies end
	r := proto.RequestID{ID: 9}
	agenttest.Open(t, other, r, 3, 80)
	got, err := other.Store(t.Context(), r, 0, 80)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range got.Grants {
		for _, s := range f.held.Granted {
			if g.Extent == s.Extent && g.Index == s.Index {
				t.Errorf("slot %d, into which an engine copies, was granted to another", s.Index)
			}
		}
	}
	id := proto.RequestID{ID: proto.ResumedRequest}
	if err := c.Commit(t.Context(), id, kept.Granted); err != nil {
		t.Errorf("commit of blocks that are there already: %v", err)
	}
	if slices.ContainsFunc(kept.Granted, func(s proto.Slot) bool { return !slices.Contains(f.held.Granted, s) }) {
		t.Errorf("kept %+v of %+v", kept.Granted, f.held.Granted)
	}
	agenttest.Bye(t, c)
	a.WantFound(t, a.Scheduler(t, 1), 2, grantedBlocks)
}

// TestResumeAtTheGrantLimitRefusesStores: what RESUMED gives back counts as granted. A
// session that is past its limit because of it is refused more, and granted more when
// it has settled what it holds.
func TestResumeAtTheGrantLimitRefusesStores(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.ExtentBytes, cfg.Tiers.DiskDir, cfg.Tiers.DiskBytes = 80<<20, 16<<20, "", 0
	f := killedAgentOf(t, cfg)
	a := startAgent(t, f.cfg)
	c := a.Scheduler(t, 1)
	var last proto.RequestID
	var lastSlots []proto.Slot
	total := 0
	for seed := 10; total < maxGrants; seed++ {
		last = proto.RequestID{ID: uint64(seed)}
		agenttest.Open(t, c, last, seed, 256)
		for first := 0; first < 256 && total < maxGrants; {
			got, err := c.Store(t.Context(), last, first, 256-first)
			if err != nil {
				t.Fatal(err)
			}
			lastSlots = lastSlots[:0]
			for _, g := range got.Grants {
				lastSlots = append(lastSlots, g.Slot)
			}
			total += len(got.Grants)
			first += len(got.Grants) // what is refused waits for the tier to grow
		}
	}
	kept, err := c.Resume(t.Context(), f.welcome, f.held)
	if err != nil || len(kept.Granted) != grantedBlocks {
		t.Fatalf("got %+v, error %v", kept, err)
	}
	r := proto.RequestID{ID: 1 << 40}
	agenttest.Open(t, c, r, 9, 2)
	got, err := c.Store(t.Context(), r, 0, 2)
	if err != nil || len(got.Grants) != 0 || got.Refused != 2 {
		t.Errorf("past the limit: %+v, error %v; want 2 refused", got, err)
	}
	agenttest.NoError(t, c.Commit(t.Context(), last, lastSlots))
	got, err = c.Store(t.Context(), r, 0, 2)
	if err != nil || len(got.Grants) != 2 {
		t.Errorf("below the limit again: %+v, error %v; want 2 grants", got, err)
	}
	if n := a.Stats().Engines.Panics; n != 0 {
		t.Errorf("%d panics", n)
	}
}
