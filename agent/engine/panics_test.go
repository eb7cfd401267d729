package engine

import (
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// brokenTokens is a sink of tokens that panics.
type brokenTokens struct{}

func (brokenTokens) BlockTokens(kv.SequenceHash, []uint32, tokens.Identity) {
	panic("broken tokens")
}

// TestPanicOfASessionEndsThatSessionOnly: a table of the agent is broken, so that the next
// token of any session panics. The session that meets it ends, its granted slots stay in
// quarantine, and the session beside it and its own successor are served.
func TestPanicOfASessionEndsThatSessionOnly(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	var broken atomic.Bool
	a := startServer(t, zap.New(core), func(s *Server) {
		s.tokens = func() tokens.Sink {
			if broken.Load() {
				return brokenTokens{}
			}
			return nil
		}
	})
	other := a.Scheduler(t, 2)
	c := a.Scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, c, r, 1, 4)
	got, err := c.Store(t.Context(), r, 0, 4)
	if err != nil || len(got.Grants) != 4 {
		t.Fatalf("got %+v, error %v", got, err)
	}

	broken.Store(true)
	_ = c.Open(proto.RequestID{ID: 2}, "", "", "", agenttest.Prompt(2, 1))
	<-c.Done()
	broken.Store(false)

	agenttest.StorePrompt(t, other, proto.RequestID{ID: 1}, 3, 2)
	agenttest.StorePrompt(t, a.Scheduler(t, 1), proto.RequestID{ID: 1}, 4, 2)
	pool := a.pool()
	engines := a.Stats().Engines
	if pool.Host.Quarantined != 4 || engines.AwaitingExit != 1 || engines.Panics != 1 {
		t.Errorf("%d slots in quarantine, %d sessions wait for their processes, %d panics; want 4, 1, 1", pool.Host.Quarantined, engines.AwaitingExit, engines.Panics)
	}
	found := logs.FilterMessageSnippet("panicked").All()
	if len(found) != 1 || !strings.Contains(found[0].ContextMap()["stack"].(string), "brokenTokens") {
		t.Errorf("log: %v", found)
	}
}

// TestPanicBeforeASessionLeavesItsPlaceFree: a panic while a session is made ends its
// connection, and the place of the worker rank is free again.
func TestPanicBeforeASessionLeavesItsPlaceFree(t *testing.T) {
	a := startServer(t, nil, func(s *Server) { s.pools = nil })
	for range 2 {
		if c, err := a.Dial(t, 1); err == nil {
			t.Fatalf("got %+v", c.Welcome())
		}
	}
	agenttest.Eventually(t, "the place is free after 2 panics", func() bool {
		return a.Stats().Engines.Panics == 2 && a.session(1) == nil
	})
}
