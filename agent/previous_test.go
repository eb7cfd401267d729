package agent_test

import (
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// An idle engine that lives on while its agent is killed again and again must not
// use up the sessions of the node.
func TestPreviousSessionsThatHoldNothingDoNotPileUp(t *testing.T) {
	cfg := testConfig(t)
	for range 3 {
		child := startAgentChild(t, cfg)
		idle, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: cfg.Socket, Hello: agenttest.Hello(3)})
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Close()
		child.kill()
		<-idle.Done()
	}
	a := startAgent(t, cfg)
	if n := a.Stats().Engines.Previous; n != 1 {
		t.Errorf("%d previous sessions before the pool is open, want the last one", n)
	}
	a.Scheduler(t, 1)
	if s := a.Stats(); s.Engines.Previous != 0 || s.Pools[0].PreviousSessions != 0 {
		t.Errorf("%d previous sessions are left, %d in the pool", s.Engines.Previous, s.Pools[0].PreviousSessions)
	}
}

func TestTakeoverIsLoggedAsItIs(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.DiskBytes = 0
	log, logs := logged(zap.InfoLevel)
	const line = "the host tier of an earlier agent is taken over"
	startLoggedAgent(t, cfg, log).stop()
	startLoggedAgent(t, cfg, log).stop()
	if n := logs.FilterMessage(line).Len(); n != 0 {
		t.Errorf("%d lines of an agent that left nothing", n)
	}
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	for seed := range 2 {
		agenttest.StorePrompt(t, c, proto.RequestID{ID: uint64(seed)}, seed, 60)
		agenttest.Eventually(t, "all is sealed", func() bool { return a.Stats().Quiet })
	}
	a.stop()
	cfg.Tiers.HostBytes = 256 << 10 // one extent of those that are there
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
	c := a.Scheduler(t, 1)
	a.Worker(t, c, 1)
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, c, r, 1, 1)
	agenttest.Grant(t, c, r, 0, 1)
	a.stop()
	if n := a.Stats().Engines.WorkersLost; n != 0 {
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
