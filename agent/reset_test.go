package agent_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// An engine whose weights have changed has what it stored thrown away.
func TestResetEmptiesTheNamespaceOfItsOnlySession(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c, got := a.Listener(t, agenttest.Hello(1))
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 5) // sealed and written to disk meanwhile
	agenttest.NoError(t, c.Reset(t.Context()))
	if s := a.Stats(); s.Pools[0].Blocks != 0 || s.Engines.Resets != 1 {
		t.Errorf("%d blocks after %d resets, want none after 1", s.Pools[0].Blocks, s.Engines.Resets)
	}
	agenttest.Eventually(t, "the engine is told", func() bool { return len(got.Of(1)) == 5 })
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 5)
	if hit, err := c.Lookup(t.Context(), r, 0, 5, 0); err != nil || hit.Ready+hit.Coming != 0 {
		t.Errorf("got %+v, error %v: want nothing", hit, err)
	}
}

// Another engine of the namespace still stands behind the blocks.
func TestResetLeavesAloneWhatAnotherSessionHasOpen(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	other := a.Scheduler(t, 2)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 5)
	agenttest.NoError(t, c.Reset(t.Context()))
	if s := a.Stats(); s.Pools[0].Blocks != 5 || s.Engines.Resets != 0 {
		t.Errorf("%d blocks after %d resets, want all 5 after none", s.Pools[0].Blocks, s.Engines.Resets)
	}
	agenttest.Bye(t, other)
	if err := c.Reset(t.Context()); err != nil || a.Stats().Pools[0].Blocks != 0 {
		t.Errorf("error %v, %d blocks: want none once the other one has left", err, a.Stats().Pools[0].Blocks)
	}
}

func TestResetIsRefusedWhileTheSessionHoldsAnything(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, c, r, 1, 2)
	agenttest.WantRefused(t, c.Reset(t.Context()), proto.CodeState)
	granted := agenttest.Grant(t, c, r, 0, 2)
	next := proto.RequestID{ID: 1, Generation: 1}
	if err := c.Open(next, "", "", "", nil); err != nil { // the grants stay with the one before
		t.Fatal(err)
	}
	agenttest.CloseRequest(t, c, next)
	agenttest.WantRefused(t, c.Reset(t.Context()), proto.CodeState)
	agenttest.NoError(t, c.Abort(r, granted))
	if err := c.Reset(t.Context()); err != nil {
		t.Errorf("got error %v once nothing is held", err)
	}
}

// What RESUMED gave back is held as any other pin.
func TestResetIsRefusedWhileResumedPinsAreHeld(t *testing.T) {
	f := killedAgent(t)
	a := startAgent(t, f.cfg)
	c := a.Scheduler(t, 1)
	kept, err := c.Resume(t.Context(), f.welcome, proto.Held{Pinned: f.held.Pinned})
	if err != nil || len(kept.Pinned) != storedBlocks {
		t.Fatalf("kept %+v, error %v", kept, err)
	}
	agenttest.WantRefused(t, c.Reset(t.Context()), proto.CodeState)
	agenttest.CloseRequest(t, c, proto.RequestID{ID: proto.ResumedRequest})
	if err := c.Reset(t.Context()); err != nil || a.Stats().Pools[0].Blocks != 0 {
		t.Errorf("error %v, %d blocks: want none", err, a.Stats().Pools[0].Blocks)
	}
}
