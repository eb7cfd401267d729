package agent

import (
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// An idle engine that lives on while its agent is killed again and again must not
// use up the sessions of the node.
func TestFormerSessionsThatHoldNothingDoNotPileUp(t *testing.T) {
	cfg := testConfig(t)
	for range 3 {
		child := startAgentChild(t, cfg)
		idle, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: cfg.Socket, Hello: helloOf(3)})
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Close()
		child.kill()
		<-idle.Done()
	}
	a := startAgent(t, cfg)
	if n := a.Stats().Engines.Former; n != 1 {
		t.Errorf("%d former sessions before the pool is open, want the last one", n)
	}
	a.scheduler(t, 1)
	if s := a.Stats(); s.Engines.Former != 0 || s.Pools[0].FormerSessions != 0 {
		t.Errorf("%d former sessions are left, %d in the pool", s.Engines.Former, s.Pools[0].FormerSessions)
	}
}

func TestFormerSessionThatHoldsSomethingStays(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	a.scheduler(t, 2)
	if s := a.Stats(); s.Engines.Former != 1 || s.Pools[0].FormerSessions != 1 {
		t.Errorf("%d former sessions, %d in the pool, want 1", s.Engines.Former, s.Pools[0].FormerSessions)
	}
}

func TestTakeoverIsLoggedAsItIs(t *testing.T) {
	cfg := testConfig(t)
	cfg.DiskBytes = 0
	log, logs := logged(zap.InfoLevel)
	const line = "the host tier of an earlier agent is taken over"
	startLoggedAgent(t, cfg, log).stop()
	startLoggedAgent(t, cfg, log).stop()
	if n := logs.FilterMessage(line).Len(); n != 0 {
		t.Errorf("%d lines of an agent that left nothing", n)
	}
	a := startAgent(t, cfg)
	c := a.scheduler(t, 1)
	for seed := range 2 {
		storePrompt(t, c, proto.RequestID{ID: uint64(seed)}, seed, 60)
		eventually(t, "all is sealed", func() bool { return a.Stats().Quiet })
	}
	a.stop()
	cfg.HostBytes = 256 << 10 // one extent of those that are there
	startLoggedAgent(t, cfg, log).stop()
	took := logs.FilterMessage(line).All()
	if len(took) != 1 {
		t.Fatalf("%d lines, want one", len(took))
	}
	if m := took[0].ContextMap(); m["extents"] != int64(1) || m["host_bytes"].(uint64) > 1<<20 {
		t.Errorf("it says %v", m)
	}
}

func TestOrderlyStopIsLoggedAsOne(t *testing.T) {
	cfg := testConfig(t)
	log, logs := logged(zap.DebugLevel)
	a := startLoggedAgent(t, cfg, log)
	c := a.scheduler(t, 1)
	a.worker(t, c, 1)
	r := proto.RequestID{ID: 1}
	if err := c.Open(r, "", "", "", prompt(1, 1)); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Store(t.Context(), r, 0, 1); err != nil || len(got.Grants) != 1 {
		t.Fatalf("got %+v, error %v", got, err)
	}
	a.stop()
	if n := a.server.sessions.workersLost.Load(); n != 0 {
		t.Errorf("%d workers count as lost", n)
	}
	for _, line := range []string{"stopping", "stopped", "session ended"} {
		if n := logs.FilterMessage(line).Len(); n != 1 {
			t.Errorf("%q is there %d times", line, n)
		}
	}
	for _, e := range logs.All() {
		if text, _ := e.ContextMap()["cause"].(string); strings.Contains(text, "closed") {
			t.Errorf("%s: cause %s", e.Message, text)
		}
		if e.Level >= zap.WarnLevel && e.LoggerName == "sessions" {
			t.Errorf("a warning: %s %v", e.Message, e.ContextMap())
		}
	}
}

func TestResumeWithTooManyProcessesTakesNone(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.scheduler(t, 1)
	a.server.mu.Lock()
	s := a.server.byID[blockmgr.SessionID(c.Welcome().Session)]
	a.server.mu.Unlock()
	table := a.server.processes
	for n := range storage.MaxSessionProcesses - 2 {
		if err := s.admit(table.unwatched(blockmgr.Process{PID: 1 << 20, Start: uint64(n + 1)})); err != nil {
			t.Fatal(err)
		}
	}
	alive := []blockmgr.Process{table.identify(int32(os.Getppid())), table.identify(1)}
	if !identified(alive[0]) || alive[0] == alive[1] {
		t.Skip("two other processes are needed")
	}
	before := len(s.procs)
	var refused *refusal.Error
	if err := s.inherit(&blockmgr.Former{Processes: alive}); !errors.As(err, &refused) || refused.Code != proto.CodeLimit {
		t.Errorf("got error %v, want %s", err, proto.CodeLimit)
	}
	if n := a.watches(); len(s.procs) != before || len(s.enlisted) != storage.MaxSessionProcesses-1 || n != 1 {
		t.Errorf("%d processes after %d, %d enlisted, %d watched", len(s.procs), before, len(s.enlisted), n)
	}
	if err := s.inherit(&blockmgr.Former{Processes: alive[:1]}); err != nil {
		t.Errorf("one more, which there is room for: %v", err)
	}
}
