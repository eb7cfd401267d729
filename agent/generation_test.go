package agent_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// superseded opens request 1 twice; its first generation holds grants for all n
// blocks, its second generation has other tokens.
func superseded(t *testing.T, c *proto.SchedulerClient, n int) (old, current proto.RequestID, grants []proto.Slot) {
	t.Helper()
	old, current = proto.RequestID{ID: 1}, proto.RequestID{ID: 1, Generation: 1}
	agenttest.Open(t, c, old, 1, n)
	grants = agenttest.Grant(t, c, old, 0, n)
	agenttest.Open(t, c, current, 2, n)
	return old, current, grants
}

// The engine may still be copying into the grants of a request that it opens
// again: nobody else may get these slots, and what was copied counts.
func TestGrantsOutliveTheNextGeneration(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.ExtentBytes = 40<<10, 40<<10 // 8 or 9 slots
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	old, current, grants := superseded(t, c, 4)
	for _, g := range agenttest.Grant(t, c, current, 0, 4) {
		for _, s := range grants {
			if g.Extent == s.Extent && g.Index == s.Index {
				t.Errorf("slot %+v was granted again while the earlier generation holds it", s)
			}
		}
	}
	for i, s := range grants[:2] {
		agenttest.Fill(t, c, s, 1, i)
	}
	if err := c.Commit(t.Context(), old, grants[:2]); err != nil {
		t.Errorf("commit of the earlier generation: %v", err)
	}
	agenttest.WantRefused(t, c.Commit(t.Context(), current, grants[2:]), proto.CodeState) // not this generation's
	agenttest.NoError(t, c.Abort(old, grants[2:]))
	agenttest.WantRefused(t, c.Commit(t.Context(), old, grants[2:]), proto.CodeNotFound) // nothing is left of it
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 4)
	if hit, err := c.Lookup(t.Context(), r, 0, 4, 0); err != nil || hit.Ready != 2 {
		t.Errorf("got %+v, error %v: want the 2 blocks that were committed", hit, err)
	}
	if n := a.Stats().Pools[0].Host.Granted; n != 4 {
		t.Errorf("%d slots are granted, want the 4 of the open generation", n)
	}
}

func TestCloseOfAnEarlierGenerationAbortsItsGrants(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	old, current, _ := superseded(t, c, 4)
	agenttest.CloseRequest(t, c, current)
	if err := c.Open(old, "", "", "", nil); err != nil { // refused, which only the log says
		t.Fatal(err)
	}
	_, err := c.Lookup(t.Context(), old, 0, 1, 0)
	agenttest.WantRefused(t, err, proto.CodeNotFound)
	if n := a.Stats().Pools[0].Host.Granted; n != 4 {
		t.Errorf("%d slots are granted, want 4", n)
	}
	agenttest.CloseRequest(t, c, old)
	agenttest.Eventually(t, "the grants are aborted", func() bool { return a.Stats().Pools[0].Host.Granted == 0 })
	agenttest.Open(t, c, old, 1, 1)
	if _, err := c.Lookup(t.Context(), old, 0, 1, 0); err != nil {
		t.Errorf("the name is free again: %v", err)
	}
}

func TestGrantsOfAnEarlierGenerationAreQuarantinedWithTheSession(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	superseded(t, c, 4)
	c.Close()
	agenttest.Eventually(t, "the session ends", func() bool { return a.Stats().Sessions == 0 })
	if s := a.Stats(); s.Pools[0].Host.Quarantined != 4 || s.Engines.AwaitingExit != 1 {
		t.Errorf("%d slots in quarantine for %d sessions, want 4 for 1", s.Pools[0].Host.Quarantined, s.Engines.AwaitingExit)
	}
}
