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
	if err := c.Open(r, "", "", "", append(agenttest.Prompt(3, n), 1, 2, 3)); err != nil {
		t.Fatal(err)
	}
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
	if err := c.CloseRequest(r); err != nil {
		t.Error(err)
	}
	if err := w.Bye(t.Context(), "done"); err != nil {
		t.Error(err)
	}
	if err := c.Bye(t.Context(), "done"); err != nil {
		t.Error(err)
	}
	if s := a.Stats(); s.Sessions != 0 || s.Pools[0].Host.Granted != 0 || s.Engines.Refused != 0 || s.Engines.WorkersLost != 0 {
		t.Errorf("after BYE: %+v", s)
	}
}

func TestStoredBlocksAreNotGrantedAgain(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 4)
	other := a.Scheduler(t, 2)
	r := proto.RequestID{ID: 1}
	if err := other.Open(r, "", "", "", agenttest.Prompt(1, 6)); err != nil {
		t.Fatal(err)
	}
	got, err := other.Store(t.Context(), r, 0, 6)
	if err != nil || got.Present != 4 || len(got.Grants) != 2 || got.Grants[0].Block != 4 {
		t.Errorf("got %+v, error %v: want 4 present and blocks 4 and 5 granted", got, err)
	}
}

func TestLoRAAndSaltKeepBlocksApart(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
	for i, s := range []struct{ lora, salt string }{{"adapter", ""}, {"", "tenant"}} {
		r := proto.RequestID{ID: uint64(10 + i)}
		if err := c.Open(r, s.lora, s.lora, s.salt, agenttest.Prompt(1, 2)); err != nil {
			t.Fatal(err)
		}
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
	if err := c.Open(r, "", "", "", agenttest.Prompt(1, 8)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Lookup(t.Context(), r, 0, 8, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Store(t.Context(), r, 3, 5); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats().Pools[0]; s.Pins != 3 || s.Host.Granted != 5 {
		t.Fatalf("%d pins and %d granted slots, want 3 and 5", s.Pins, s.Host.Granted)
	}
	if err := c.CloseRequest(r); err != nil {
		t.Fatal(err)
	}
	agenttest.Eventually(t, "pins and grants drop", func() bool {
		s := a.Stats().Pools[0]
		return s.Pins == 0 && s.Host.Granted == 0
	})
	_, err := c.Store(t.Context(), r, 0, 1)
	agenttest.WantRefused(t, err, proto.CodeNotFound)
}

func TestAbortedSlotsComeBackWithAHigherGeneration(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	if err := c.Open(r, "", "", "", agenttest.Prompt(1, 1)); err != nil {
		t.Fatal(err)
	}
	highest := map[[2]uint32]uint64{}
	for range 3 {
		got, err := c.Store(t.Context(), r, 0, 1)
		if err != nil || len(got.Grants) != 1 {
			t.Fatalf("got %+v, error %v", got, err)
		}
		s := got.Grants[0].Slot
		at := [2]uint32{s.Extent, s.Index}
		if g := highest[at]; s.Generation <= g {
			t.Errorf("slot %v was granted at generation %d after %d", at, s.Generation, g)
		}
		highest[at] = s.Generation
		if err := c.Abort(r, []proto.Slot{s}); err != nil {
			t.Fatal(err)
		}
	}
	err := c.Commit(t.Context(), r, []proto.Slot{{Generation: 1}})
	agenttest.WantRefused(t, err, proto.CodeState)
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
	if err := c.Open(r, "", "", "", agenttest.Prompt(0, n)); err != nil {
		t.Fatal(err)
	}
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

func TestAgentWithoutTiersFindsAndGrantsNothing(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.DiskBytes = 0, 0
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	if c.Welcome().HostEnabled {
		t.Error("WELCOME says that there is a host tier")
	}
	r := proto.RequestID{ID: 1}
	if err := c.Open(r, "", "", "", agenttest.Prompt(1, 3)); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Store(t.Context(), r, 0, 3); err != nil || got.Refused != 3 {
		t.Errorf("store: got %+v, error %v", got, err)
	}
	if got, err := c.Lookup(t.Context(), r, 0, 3, time.Second); err != nil || got.Ready != 0 {
		t.Errorf("lookup: got %+v, error %v", got, err)
	}
}
