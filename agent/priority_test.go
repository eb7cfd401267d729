package agent_test

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// KVBM ends the offload of a request at its first block of too low a priority.
func TestBlocksOfTooLowAPriorityAreRefusedWithAllAfterThem(t *testing.T) {
	cfg := testConfig(t)
	cfg.MinPriority = 10
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, c, r, 1, 8)
	for _, s := range []struct {
		first, count    int
		priority        uint32
		granted, refuse int
	}{
		{0, 2, 10, 2, 0},
		{4, 2, 9, 0, 2}, // from block 4 on nothing is stored any more
		{2, 4, 99, 2, 2},
		{6, 2, 99, 0, 2},
	} {
		got, err := c.StorePriority(t.Context(), r, s.first, s.count, s.priority)
		if err != nil || len(got.Grants) != s.granted || got.Refused != s.refuse {
			t.Errorf("%+v: got %d grants, %d refused, error %v", s, len(got.Grants), got.Refused, err)
		}
	}
	if n := a.Stats().Engines.LowPriority; n != 6 {
		t.Errorf("%d blocks count as of low priority, want 6", n)
	}
	other := proto.RequestID{ID: 2} // the rule is for the request
	agenttest.Open(t, c, other, 2, 1)
	if got, err := c.StorePriority(t.Context(), other, 0, 1, 10); err != nil || len(got.Grants) != 1 {
		t.Errorf("another request: got %+v, error %v", got, err)
	}
}

// Blocks on disk are on their way before anybody looks them up.
func TestOpenBeginsToFetchBlocksFromDisk(t *testing.T) {
	for _, off := range []bool{false, true} {
		cfg := testConfig(t)
		cfg.NoPrefetch, cfg.Tiers.DiscardHost = off, true
		first := startAgent(t, cfg)
		agenttest.StorePrompt(t, first.Scheduler(t, 1), proto.RequestID{ID: 1}, 1, 4)
		agenttest.Eventually(t, "all is on disk", func() bool { return first.Stats().Quiet })
		first.stop()
		a := startAgent(t, cfg)
		c := a.Scheduler(t, 1)
		r := proto.RequestID{ID: 1}
		agenttest.Open(t, c, r, 1, 2)
		agenttest.NoError(t, c.Append(r, 2*agenttest.BlockSize, agenttest.Prompt(1, 4)[2*agenttest.BlockSize:]))
		if !off {
			agenttest.Eventually(t, "the blocks are in host memory", func() bool { return a.Stats().Pools[0].Promotions == 4 })
		}
		if hit, err := c.Lookup(t.Context(), r, 0, 4, 10*time.Second); err != nil || hit.Ready != 4 {
			t.Errorf("got %+v, error %v", hit, err)
		}
		want := uint64(4)
		if off {
			want = 0
		}
		if n := a.Stats().Engines.Prefetched; n != want {
			t.Errorf("prefetch off: %v: %d blocks prefetched, want %d", off, n, want)
		}
	}
}
