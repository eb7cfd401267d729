package frontend_test

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// vLLM counts the ranks of the header among the ranks of the server that gets it.
func TestRankHeaderCountsFromTheServersFirstRank(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{}, s)
	r := b.router.Registry()
	if err := r.Register(&registry.Registration{WorkerID: 7, FirstRank: 2, Ranks: 2, Model: "m", BlockSize: blockSize, Endpoint: s.URL}, time.Hour); err != nil {
		t.Fatal(err)
	}
	r.Announce(7)
	for {
		all := b.router.Workers()
		if len(all) == 2 && all[0].Worker.Rank == 2 && all[1].Worker.Rank == 3 {
			break
		}
		runtime.Gosched()
	}
	b.directory.workers = []*workers.Worker{{
		ID: 7, URL: s.URL, FirstRank: 2, Ranks: 2, State: workers.Ready, Facts: workers.Facts{BlockSize: blockSize},
	}}
	for range 20 {
		if resp, body := b.post("/v1/completions", `{"model":"m","prompt":[1,2,3,4,5,6,7,8]}`); resp.StatusCode != 200 {
			t.Fatalf("status %d: %s", resp.StatusCode, body)
		}
	}
	var ranks []string
	for _, h := range s.header {
		ranks = append(ranks, h.Get("X-data-parallel-rank"))
	}
	slices.Sort(ranks)
	for _, rank := range slices.Compact(ranks) {
		if rank != "0" && rank != "1" {
			t.Errorf("the server got rank %q, want 0 or 1", rank)
		}
	}
	b.expectIdle()
}
