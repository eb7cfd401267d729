package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestWholeCycleOfABlock(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 7)
	w := a.Worker(t, c, 7)
	const n = 5
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 3, n)

	r := proto.RequestID{ID: 2, Generation: 1}
	agenttest.NoError(t, c.Open(r, "", "", "", append(agenttest.Prompt(3, n), 1, 2, 3)))
	hit, err := c.Lookup(t.Context(), r, 0, 20, 0)
	if err != nil || hit.Ready != n || slices.ContainsFunc(hit.Sources, func(s kv.Tier) bool { return s != kv.TierHost }) {
		t.Fatalf("lookup: %+v, error %v: want %d blocks in host memory", hit, err, n)
	}
	told, err := c.Claim(t.Context(), r, 55, 1, []uint32{10, 11, 12})
	if err != nil || told != 1 {
		t.Fatalf("claim: %d workers told, error %v", told, err)
	}
	job := <-w.Loads()
	if job.Job != 55 || !slices.Equal(job.Slots, hit.Slots[1:4]) || !slices.Equal(job.Blocks, []uint32{10, 11, 12}) {
		t.Errorf("the worker got %+v, the scheduler slots %v", job, hit.Slots)
	}
	for i, s := range job.Slots {
		if err := agenttest.CheckSlot(w, s, 3, 1+i); err != nil {
			t.Error(err)
		}
	}
	if err := c.Release(r, 0, n); err != nil {
		t.Error(err)
	}
	agenttest.Eventually(t, "released pins drop", func() bool { return a.Stats().Pools[0].Pins == 0 })
	agenttest.CloseRequest(t, c, r)
	agenttest.Bye(t, w)
	agenttest.Bye(t, c)
	if s := a.Stats(); s.Sessions != 0 || s.Pools[0].Host.Granted != 0 || s.Engines.Refused != 0 || s.Engines.WorkersLost != 0 {
		t.Errorf("after BYE: %+v", s)
	}
}

func TestLoRAAndSaltKeepBlocksApart(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
	for i, s := range []struct{ lora, salt string }{{"adapter", ""}, {"", "tenant"}} {
		r := proto.RequestID{ID: uint64(10 + i)}
		agenttest.NoError(t, c.Open(r, s.lora, s.lora, s.salt, agenttest.Prompt(1, 2)))
		if hit, err := c.Lookup(t.Context(), r, 0, 2, 0); err != nil || hit.Ready != 0 {
			t.Errorf("lora %q salt %q: got %+v, error %v: want nothing", s.lora, s.salt, hit, err)
		}
	}
}

func TestCloseDropsPinsAndGrants(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 8)
	if _, err := c.Lookup(t.Context(), r, 0, 8, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Store(t.Context(), r, 3, 5); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats().Pools[0]; s.Pins != 3 || s.Host.Granted != 5 {
		t.Fatalf("%d pins and %d granted slots, want 3 and 5", s.Pins, s.Host.Granted)
	}
	agenttest.CloseRequest(t, c, r)
	agenttest.Eventually(t, "pins and grants drop", func() bool {
		s := a.Stats().Pools[0]
		return s.Pins == 0 && s.Host.Granted == 0
	})
	_, err := c.Store(t.Context(), r, 0, 1)
	agenttest.WantRefused(t, err, proto.CodeNotFound)
}

func TestDiskBlocksAreReportedWithTheirSource(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.ExtentBytes = 128<<10, 128<<10
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	const prompts, n = 8, 10
	for seed := range prompts {
		agenttest.StorePrompt(t, c, proto.RequestID{ID: uint64(seed)}, seed, n)
		agenttest.Eventually(t, "blocks reach the disk", func() bool { return a.Stats().Quiet })
	}
	r := proto.RequestID{ID: 100}
	agenttest.Open(t, c, r, 0, n)
	hit, err := c.Lookup(t.Context(), r, 0, n, 10*time.Second)
	if err != nil || hit.Ready != n || !slices.Contains(hit.Sources, kv.TierDisk) {
		t.Fatalf("got %+v, error %v: want %d blocks, some from disk", hit, err, n)
	}
	for i, s := range hit.Slots {
		if err := agenttest.CheckSlot(c, s, 0, i); err != nil {
			t.Error(err)
		}
	}
}
