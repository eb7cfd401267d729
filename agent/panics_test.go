package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// TestPanicOfASessionEndsThatSessionOnly: a table of the agent is broken, so that the next
// token of any session panics. The session that meets it ends, its granted slots stay in
// quarantine, and the session beside it and its own successor are served.
func TestPanicOfASessionEndsThatSessionOnly(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	a := startLoggedAgent(t, testConfig(t), zap.New(core))
	other := a.scheduler(t, 2)
	c := a.scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	if err := c.Open(r, "", "", "", prompt(1, 4)); err != nil {
		t.Fatal(err)
	}
	got, err := c.Store(t.Context(), r, 0, 4)
	if err != nil || len(got.Grants) != 4 {
		t.Fatalf("got %+v, error %v", got, err)
	}

	a.hub.out.tokens.Store(new(tokens.Table)) // it has no maps
	_ = c.Open(proto.RequestID{ID: 2}, "", "", "", prompt(2, 1))
	<-c.Done()
	a.hub.out.tokens.Store(nil)

	storePrompt(t, other, proto.RequestID{ID: 1}, 3, 2)
	storePrompt(t, a.scheduler(t, 1), proto.RequestID{ID: 1}, 4, 2)
	pool := a.manager.Pools()[0].Stats()
	engines := a.Stats().Engines
	if pool.Host.Quarantined != 4 || engines.AwaitingExit != 1 || engines.Panics != 1 {
		t.Errorf("%d slots in quarantine, %d sessions wait for their processes, %d panics; want 4, 1, 1", pool.Host.Quarantined, engines.AwaitingExit, engines.Panics)
	}
	found := logs.FilterMessageSnippet("panicked").All()
	if len(found) != 1 || !strings.Contains(found[0].ContextMap()["stack"].(string), "(*nameTable).hold") {
		t.Errorf("log: %v", found)
	}
}

// TestPanicBeforeASessionLeavesItsPlaceFree: a panic while a session is made ends its
// connection, and the place of the worker rank is free again.
func TestPanicBeforeASessionLeavesItsPlaceFree(t *testing.T) {
	a, err := New(t.Context(), testConfig(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	a.server.room = nil // whatever makes a pool dereferences it
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	ta := &testAgent{Agent: a, cfg: a.cfg}
	for range 2 {
		if c, err := ta.dial(t, 1); err == nil {
			t.Fatalf("got %+v", c.Welcome())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := a.Stats().Engines.Panics; n != 2 || len(a.server.byOwner) != 0 {
		t.Errorf("%d panics, %d places taken; want 2, 0", n, len(a.server.byOwner))
	}
}

// TestPanicWhileAStreamOpensFreesItsPort: what a session had opened for its events when it
// panicked is closed, so that its successor finds the port free.
func TestPanicWhileAStreamOpensFreesItsPort(t *testing.T) {
	hello := helloOf(1)
	hello.EventsEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", freePort(t))
	engine := rankEngine{guard: func(do func() error) error { return do() }, gauges: func() (engineGauges, bool) { return engineGauges{}, false }}
	panicked := func() (reason any) {
		defer func() { reason = recover() }()
		// It has no connection, which is noticed when the ports are open.
		out := testOutputs(new(nats.Conn))
		_, _ = newEventHub("node", out, zap.NewNop()).startRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), engine)
		return nil
	}()
	if panicked == nil {
		t.Fatal("nothing panicked; the test shows nothing")
	}
	r, err := newEventHub("node", testOutputs(nil), zap.NewNop()).startRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), engine)
	if err != nil {
		t.Fatal(err)
	}
	defer r.stop()
	if r.warning != "" {
		t.Errorf("warning %q, want none", r.warning)
	}
}

// TestResumeAtTheGrantLimitRefusesStores: what RESUMED gives back counts as granted. A
// session that is past its limit because of it is refused more, and granted more when
// it has settled what it holds.
func TestResumeAtTheGrantLimitRefusesStores(t *testing.T) {
	cfg := testConfig(t)
	cfg.HostBytes, cfg.ExtentBytes, cfg.DiskDir, cfg.DiskBytes = 80<<20, 16<<20, "", 0
	f := killedAgentOf(t, cfg)
	a := startAgent(t, f.cfg)
	c := a.scheduler(t, 1)
	var last proto.RequestID
	var lastSlots []proto.Slot
	total := 0
	for seed := 10; total < maxGrants; seed++ {
		last = proto.RequestID{ID: uint64(seed)}
		if err := c.Open(last, "", "", "", prompt(seed, 256)); err != nil {
			t.Fatal(err)
		}
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
	if err := c.Open(r, "", "", "", prompt(9, 2)); err != nil {
		t.Fatal(err)
	}
	got, err := c.Store(t.Context(), r, 0, 2)
	if err != nil || len(got.Grants) != 0 || got.Refused != 2 {
		t.Errorf("past the limit: %+v, error %v; want 2 refused", got, err)
	}
	if err := c.Commit(t.Context(), last, lastSlots); err != nil {
		t.Fatal(err)
	}
	got, err = c.Store(t.Context(), r, 0, 2)
	if err != nil || len(got.Grants) != 2 {
		t.Errorf("below the limit again: %+v, error %v; want 2 grants", got, err)
	}
	if n := a.Stats().Engines.Panics; n != 0 {
		t.Errorf("%d panics", n)
	}
}
