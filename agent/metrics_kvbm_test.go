package agent_test

import (
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/engine"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

var rewrite = flag.Bool("rewrite", false, "write the files of frozen text in testdata anew")

// The text is what dashboards for KVBM read: names, types, no labels.
func TestKVBMMetricsAreTheFrozenText(t *testing.T) {
	stats := agent.Stats{
		Pools: []agent.PoolStats{
			{Stats: blockmgr.Stats{Counters: blockmgr.Counters{Committed: 10, DiskCounters: blockmgr.DiskCounters{WriteBehind: 4}}}},
			{Stats: blockmgr.Stats{Counters: blockmgr.Counters{Committed: 1, DiskCounters: blockmgr.DiskCounters{WriteBehind: 2}}}},
		},
		Cache: engine.CacheStats{MatchedTokens: 640, OnboardedHost: 30, OnboardedDisk: 10, HostHitRate: 0.5, DiskHitRate: 0.25},
	}
	for file, bypass := range map[string]bool{"testdata/kvbm.txt": false, "testdata/kvbm-bypass.txt": true} {
		w := httptest.NewRecorder()
		agent.KVBMHandler(func() agent.Stats { return stats }, bypass).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if *rewrite {
			agenttest.NoError(t, os.WriteFile(file, w.Body.Bytes(), 0o644))
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), w.Body.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", file, d)
		}
	}
}

func TestKVBMMetricsAreServedOnTheirOwnAddress(t *testing.T) {
	cfg := testConfig(t)
	cfg.KVBM.Metrics = "127.0.0.1:0"
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	a.Worker(t, c, 1)
	r := proto.RequestID{ID: 2}
	agenttest.Open(t, c, r, 1, 4)
	for range 2 { // a retry is no new promise
		if hit, err := c.Lookup(t.Context(), r, 0, 4, 0); err != nil || hit.Ready != 3 {
			t.Fatalf("got %+v, error %v", hit, err)
		}
	}
	if _, err := c.Claim(t.Context(), r, 1, 0, make([]uint32, 3)); err != nil {
		t.Fatal(err)
	}
	agenttest.CloseRequest(t, c, r)
	agenttest.Eventually(t, "the request has ended", func() bool { return a.Stats().Cache.Requests == 1 })
	status, body := getFrom(t, a.KVBMAddr(), "/metrics")
	for _, want := range []string{
		"\nkvbm_offload_blocks_d2h 3\n", "\nkvbm_onboard_blocks_h2d 3\n", "\nkvbm_matched_tokens 48\n", "\nkvbm_host_cache_hit_rate 0.75\n",
	} {
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("status %d, want %q in\n%s", status, want, body)
		}
	}
}
