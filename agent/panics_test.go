package agent

import (
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// TestResumeAtTheGrantLimitRefusesStores: what RESUMED gives back counts as granted. A
// session that is past its limit because of it is refused more, and granted more when
// it has settled what it holds.
func TestResumeAtTheGrantLimitRefusesStores(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.ExtentBytes, cfg.Tiers.DiskDir, cfg.Tiers.DiskBytes = 80<<20, 16<<20, "", 0
	f := killedAgentOf(t, cfg)
	a := startAgent(t, f.cfg)
	c := a.Scheduler(t, 1)
	var last proto.RequestID
	var lastSlots []proto.Slot
	total := 0
	for seed := 10; total < maxGrants; seed++ {
		last = proto.RequestID{ID: uint64(seed)}
		if err := c.Open(last, "", "", "", agenttest.Prompt(seed, 256)); err != nil {
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
	if err := c.Open(r, "", "", "", agenttest.Prompt(9, 2)); err != nil {
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
