package agent

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// former is an engine, this process, that had a session with an agent that was
// killed: it had stored blocks, pinned them, and was copying into granted slots.
type former struct {
	cfg     Config
	client  *proto.SchedulerClient // of the killed agent; its mappings live
	welcome proto.Welcome
	held    proto.Held
}

const (
	storedBlocks  = 3 // prompt 1: stored, sealed and pinned
	grantedBlocks = 4 // prompt 2: granted, not committed
)

// killedAgent makes a former session.
func killedAgent(t *testing.T) *former {
	t.Helper()
	return killedAgentOf(t, testConfig(t))
}

// killedAgentOf makes a former session of an agent with a configuration.
func killedAgentOf(t *testing.T, cfg Config) *former {
	t.Helper()
	a := startAgentChild(t, cfg)
	c := a.client.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, storedBlocks)
	a.waitQuiet(t)
	a.client.worker(t, c, 1)
	f := &former{cfg: cfg, client: c, welcome: c.Welcome()}
	r := proto.RequestID{ID: 2}
	if err := c.Open(r, "", "", "", prompt(1, storedBlocks)); err != nil {
		t.Fatal(err)
	}
	hit, err := c.Lookup(t.Context(), r, 0, storedBlocks, 0)
	if err != nil || hit.Ready != storedBlocks {
		t.Fatalf("got %+v, error %v", hit, err)
	}
	f.held.Pinned = hit.Slots
	r = proto.RequestID{ID: 3}
	if err := c.Open(r, "", "", "", prompt(2, grantedBlocks)); err != nil {
		t.Fatal(err)
	}
	got, err := c.Store(t.Context(), r, 0, grantedBlocks)
	if err != nil || len(got.Grants) != grantedBlocks {
		t.Fatalf("got %+v, error %v", got, err)
	}
	for _, g := range got.Grants {
		f.held.Granted = append(f.held.Granted, g.Slot)
	}
	a.kill()
	<-c.Done()
	return f
}

// finish writes the rest of the granted blocks through the old mapping.
func (f *former) finish(t *testing.T) {
	t.Helper()
	for i, s := range f.held.Granted {
		b, err := f.client.SlotBytes(s)
		if err != nil {
			t.Fatal(err)
		}
		copy(b, content(2, i))
	}
}

func TestEngineThatResumesGoesOnAsIfTheAgentHadNotDied(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	c := a.scheduler(t, 1)
	if s := a.Stats(); s.Engines.Former != 1 || s.Pools[0].Host.Quarantined != grantedBlocks || s.Pools[0].Host.Active != storedBlocks {
		t.Errorf("before RESUME: %d former sessions, %+v", s.Engines.Former, s.Pools[0].Host)
	}
	kept, err := c.Resume(t.Context(), f.welcome, f.held)
	if d := cmp.Diff(f.held, kept); err != nil || d != "" {
		t.Fatalf("error %v (-held +kept):\n%s", err, d)
	}
	f.finish(t) // the copies went on meanwhile
	for i, s := range kept.Pinned {
		if err := checkSlot(c, s, 1, i); err != nil {
			t.Error(err)
		}
		if err := checkSlot(f.client, s, 1, i); err != nil { // the old mapping is of the same file
			t.Error(err)
		}
	}
	id := proto.RequestID{ID: proto.ResumedRequest}
	if err := c.Commit(t.Context(), id, kept.Granted[:3]); err != nil {
		t.Fatal(err)
	}
	if err := c.Abort(id, kept.Granted[3:]); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(id, 0, storedBlocks-1); err != nil {
		t.Fatal(err)
	}
	a.wantFound(t, c, 2, 3)
	eventually(t, "one pin is left", func() bool { return a.Stats().Pools[0].Pins == 1 })
	s := a.Stats()
	if h := s.Pools[0].Host; h.Granted != 0 || h.Quarantined != 0 {
		t.Errorf("after the copies: %+v", h)
	}
	if e := s.Engines; e.Former != 0 || e.Resumed != 1 || e.ResumedGrants != grantedBlocks || e.ResumedPins != storedBlocks {
		t.Errorf("counted %+v", e)
	}
	if err := c.CloseRequest(id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last pin drops", func() bool { return a.Stats().Pools[0].Pins == 0 })
}

// wantFound looks a prompt up, checks its first n blocks, and that there are no
// more.
func (a *testAgent) wantFound(t *testing.T, c *proto.SchedulerClient, seed, n int) {
	t.Helper()
	r := proto.RequestID{ID: 1000 + uint64(seed)}
	if err := c.Open(r, "", "", "", prompt(seed, n+1)); err != nil {
		t.Fatal(err)
	}
	w := a.worker(t, c, 1)
	if hit, err := c.Lookup(t.Context(), r, 0, n+1, 10*time.Second); err != nil || hit.Ready != n {
		t.Fatalf("got %+v, error %v: want %d blocks", hit, err, n)
	}
	if _, err := c.Claim(t.Context(), r, 1, 0, make([]uint32, n)); err != nil {
		t.Fatal(err)
	}
	job := <-w.Loads()
	for i, s := range job.Slots {
		if err := checkSlot(w, s, seed, i); err != nil {
			t.Error(err)
		}
	}
	if err := c.CloseRequest(r); err != nil {
		t.Fatal(err)
	}
	if err := w.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
}

func TestWhatResumeDoesNotNameIsFree(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	c := a.scheduler(t, 1)
	some := proto.Held{Granted: f.held.Granted[:1]}
	kept, err := c.Resume(t.Context(), f.welcome, some)
	if d := cmp.Diff(some, kept); err != nil || d != "" {
		t.Fatalf("error %v (-named +kept):\n%s", err, d)
	}
	if s := a.Stats().Pools[0]; s.Host.Granted != 1 || s.Host.Quarantined != 0 || s.Host.Active != 0 {
		t.Errorf("after RESUME: %+v", s.Host)
	}
}

func TestSlotsThatAreNotTheFormerSessionsAreNotGiven(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	c := a.scheduler(t, 1)
	stale := f.held.Granted[0]
	stale.Generation--
	kept, err := c.Resume(t.Context(), f.welcome, proto.Held{
		Granted: []proto.Slot{stale, {Extent: 77}, f.held.Pinned[0], f.held.Granted[1]},
		Pinned:  []proto.Slot{f.held.Granted[2], {Index: 1 << 30}, f.held.Pinned[1]},
	})
	want := proto.Held{Granted: f.held.Granted[1:2], Pinned: f.held.Pinned[1:2]}
	if d := cmp.Diff(want, kept); err != nil || d != "" {
		t.Errorf("error %v (-want +kept):\n%s", err, d)
	}
}

// The scheduler comes back first. When it goes again its workers, which have not
// connected yet, may still be copying.
func TestProcessesOfAFormerSessionAreWaitedForAfterResume(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	c := a.scheduler(t, 1)
	if _, err := c.Resume(t.Context(), f.welcome, f.held); err != nil {
		t.Fatal(err)
	}
	c.Close()
	eventually(t, "the session ends", func() bool { return a.Stats().Sessions == 0 })
	if s := a.Stats(); s.Pools[0].Host.Quarantined != grantedBlocks || s.Engines.AwaitingExit != 1 {
		t.Errorf("%d slots in quarantine, %d sessions wait", s.Pools[0].Host.Quarantined, s.Engines.AwaitingExit)
	}
}

func TestResumeOfNothingKeepsNothing(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	for name, w := range map[string]proto.Welcome{
		"no session":            {Session: 5, AgentNonce: 6},
		"this agent's own life": {Session: f.welcome.Session, AgentNonce: a.server.nonce},
	} {
		c := a.scheduler(t, 1)
		kept, err := c.Resume(t.Context(), w, f.held)
		if d := cmp.Diff(proto.Held{}, kept); err != nil || d != "" {
			t.Errorf("%s: error %v (-want +kept):\n%s", name, err, d)
		}
		if _, err = c.Resume(t.Context(), w, f.held); err == nil {
			t.Errorf("%s: RESUME came twice", name)
		} else {
			wantRefused(t, err, proto.CodeState)
		}
		if err := c.Bye(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
	}
	if n := a.Stats().Engines.Former; n != 1 {
		t.Errorf("%d former sessions are left, want the one that was not named", n)
	}
}

func TestResumeIsRefusedToStrangers(t *testing.T) {
	cfg := testConfig(t)
	first := startAgentChild(t, cfg)
	engine, session := first.startHolder(t)
	first.kill()
	a := startAgent(t, cfg)
	c := a.scheduler(t, 1)
	_, err := c.Resume(t.Context(), proto.Welcome{Session: session}, proto.Held{})
	wantRefused(t, err, proto.CodeState) // another process
	h := helloOf(2)
	h.Namespace.Weights = "other"
	other, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: cfg.Socket, Hello: h})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = other.Resume(t.Context(), proto.Welcome{Session: session}, proto.Held{})
	wantRefused(t, err, proto.CodeNamespace)
	twice := []proto.Slot{{Index: 1, Generation: 2}, {Index: 1, Generation: 2}}
	_, err = c.Resume(t.Context(), proto.Welcome{Session: session}, proto.Held{Granted: twice})
	wantRefused(t, err, proto.CodeRange)
	if s := a.Stats(); s.Engines.Former != 1 || s.Pools[0].Host.Quarantined+s.Pools[1].Host.Quarantined != 4 {
		t.Errorf("a refused RESUME changed something: %+v", s.Engines)
	}
	engine.kill()
	eventually(t, "the engine's slots are free", func() bool {
		s := a.Stats()
		return s.Engines.Former == 0 && s.Pools[0].Host.Quarantined+s.Pools[1].Host.Quarantined == 0
	})
}

func TestSlotsOfAnEngineThatDiedBetweenTwoAgentsAreFree(t *testing.T) {
	cfg := testConfig(t)
	first := startAgentChild(t, cfg)
	engine, _ := first.startHolder(t)
	first.kill()
	engine.kill()
	a := startAgent(t, cfg)
	a.scheduler(t, 1)
	eventually(t, "the engine's slots are free", func() bool {
		s := a.Stats()
		return s.Engines.Former == 0 && s.Pools[0].Host.Quarantined == 0
	})
}

func TestFormerSessionWhoseProcessesNobodyCanTellIsNotGone(t *testing.T) {
	table := newProcessTable()
	f := newFormerSessions(nil, table, 1, nil, zap.NewNop())
	self := table.identify(int32(os.Getpid()))
	for name, s := range map[string]blockmgr.Former{
		"of another pid namespace":  {Foreign: true},
		"with one that had no pid":  {Processes: []blockmgr.Process{self, table.identify(0)}},
		"without its starting time": {Processes: []blockmgr.Process{{PID: self.PID}}},
	} {
		if procs, ok := f.find(s); ok || procs != nil {
			t.Errorf("%s: found %d processes", name, len(procs))
		}
	}
	if n := len(table.byKey); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

func TestWorkerFromOneProcessTooManyIsRefused(t *testing.T) {
	a := startAgent(t, testConfig(t))
	_, id := (&agentChild{client: *a}).startHolder(t)
	a.server.mu.Lock()
	s := a.server.byID[blockmgr.SessionID(id)]
	a.server.mu.Unlock()
	for n := range storage.MaxSessionProcesses - 1 {
		if err := s.admit(a.server.processes.unwatched(blockmgr.Process{PID: 1 << 20, Start: uint64(n + 1)})); err != nil {
			t.Fatal(err)
		}
	}
	h := helloOf(9)
	h.Session = id
	_, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h}, proto.Register{DeviceBlocks: 1, BlockBytes: 1})
	wantRefused(t, err, proto.CodeLimit)
}

func TestResumedRequestCannotBeOpened(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.rawScheduler(t, 1)
	send(t, c, proto.TypeOpen, 0, &proto.Open{Request: proto.ResumedRequest})
	wantError(t, c, 0, proto.CodeRange)
	for _, m := range []struct {
		t    proto.Type
		corr uint32
		m    proto.Message
	}{
		{proto.TypeCommit, 1, &proto.SlotList{Request: proto.ResumedRequest, Slots: make([]byte, 16)}},
		{proto.TypeRelease, 0, &proto.Range{Request: proto.ResumedRequest, Count: 1}},
		{proto.TypeClose, 0, &proto.Close{Request: proto.ResumedRequest}},
	} {
		send(t, c, m.t, m.corr, m.m)
		wantError(t, c, m.corr, proto.CodeNotFound)
	}
}

// An agent that is stopped ends its sessions; what they were granted may still be
// written to.
func TestGrantsOutliveAnAgentThatIsStopped(t *testing.T) {
	cfg := testConfig(t)
	first := startAgent(t, cfg)
	c := first.scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	if err := c.Open(r, "", "", "", prompt(1, 2)); err != nil {
		t.Fatal(err)
	}
	got, err := c.Store(t.Context(), r, 0, 2)
	if err != nil || len(got.Grants) != 2 {
		t.Fatalf("got %+v, error %v", got, err)
	}
	first.stop()
	<-c.Done()
	a := startAgent(t, cfg)
	again := a.scheduler(t, 1)
	if s := a.Stats(); s.Engines.Former != 1 || s.Pools[0].Host.Quarantined != 2 {
		t.Errorf("%d former sessions, %d slots in quarantine", s.Engines.Former, s.Pools[0].Host.Quarantined)
	}
	var held proto.Held
	for _, g := range got.Grants {
		held.Granted = append(held.Granted, g.Slot)
		b, err := c.SlotBytes(g.Slot)
		if err != nil {
			t.Fatal(err)
		}
		copy(b, content(1, int(g.Block)))
	}
	kept, err := again.Resume(t.Context(), c.Welcome(), held)
	if d := cmp.Diff(held, kept); err != nil || d != "" {
		t.Fatalf("error %v (-held +kept):\n%s", err, d)
	}
	if err := again.Commit(t.Context(), proto.RequestID{ID: proto.ResumedRequest}, kept.Granted); err != nil {
		t.Fatal(err)
	}
	a.wantFound(t, again, 1, 2)
}

func TestStoppedAgentLeavesItsHostTierToTheNext(t *testing.T) {
	cfg := testConfig(t)
	cfg.DiskBytes = 0
	a := startAgent(t, cfg)
	c := a.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	eventually(t, "all is sealed", func() bool { return a.Stats().Quiet })
	a.stop()
	<-c.Done()
	b := startAgent(t, cfg)
	again := b.scheduler(t, 1)
	b.wantFound(t, again, 1, 3)
}
