package agent

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

var rewrite = flag.Bool("rewrite", false, "write the files of frozen text in testdata anew")

// The text is what dashboards for KVBM read: names, types, no labels.
func TestKVBMMetricsAreTheFrozenText(t *testing.T) {
	stats := Stats{
		Pools: []PoolStats{
			{Stats: blockmgr.Stats{Counters: blockmgr.Counters{Committed: 10, WriteBehind: 4}}},
			{Stats: blockmgr.Stats{Counters: blockmgr.Counters{Committed: 1, WriteBehind: 2}}},
		},
		Cache: CacheStats{MatchedTokens: 640, OnboardedHost: 30, OnboardedDisk: 10, HostHitRate: 0.5, DiskHitRate: 0.25},
	}
	for file, bypass := range map[string]bool{"testdata/kvbm.txt": false, "testdata/kvbm-bypass.txt": true} {
		w := httptest.NewRecorder()
		kvbmHandler(func() Stats { return stats }, bypass).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if *rewrite {
			if err := os.WriteFile(file, w.Body.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
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

func TestHitRatesSpanTheLastRequests(t *testing.T) {
	c := newCacheCounters(2)
	finish := func(hit ...kv.Tier) {
		var h requestHits
		h.add(0, 4, hit)
		c.finish(h)
	}
	finish(kv.TierHost, kv.TierHost, kv.TierHost, kv.TierHost)
	c.finish(requestHits{}) // a request that asked for nothing
	finish(kv.TierHost, kv.TierDisk)
	if s := c.snapshot(); s.HostHitRate != 5./8 || s.DiskHitRate != 1./8 || s.Requests != 2 {
		t.Errorf("got %+v", s)
	}
	finish() // the first one is forgotten
	if s := c.snapshot(); s.HostHitRate != 1./8 || s.DiskHitRate != 1./8 || s.Requests != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestBlocksThatAreAskedForAgainCountOnce(t *testing.T) {
	var h requestHits
	host, disk := kv.TierHost, kv.TierDisk
	for _, ask := range []struct {
		first   uint32
		count   int
		sources []kv.Tier
		matched int
	}{
		{0, 4, []kv.Tier{host, host}, 2},
		{0, 4, []kv.Tier{host, host, disk}, 1},
		{0, 0, nil, 0},
		{4, 2, []kv.Tier{host}, 1},
		{2, 4, []kv.Tier{disk, host, host}, 0},
	} {
		if got := h.add(ask.first, ask.count, ask.sources); got != ask.matched {
			t.Errorf("%+v: %d blocks counted", ask, got)
		}
	}
	if want := (requestHits{asked: 6, matched: 5, blocks: 6, host: 3, disk: 1}); h != want {
		t.Errorf("got %+v, want %+v", h, want)
	}
}

func TestHitRatesAreLoggedWhenTheyChangeAndNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		c := newCacheCounters(100)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.logRates(ctx, time.Minute, zap.New(core))
		}()
		hit := requestHits{blocks: 1, host: 1}
		for _, s := range []struct {
			h     requestHits
			after time.Duration
			lines int
		}{
			{hit, 0, 1},                                     // at once
			{requestHits{blocks: 1}, 0, 1},                  // too soon
			{requestHits{blocks: 1}, time.Hour, 2},          // for both
			{requestHits{blocks: 3, host: 1}, time.Hour, 2}, // as before
		} {
			c.finish(s.h)
			<-time.After(s.after)
			synctest.Wait()
			if n := logged.Len(); n != s.lines {
				t.Errorf("%+v: %d lines, want %d", s, n, s.lines)
			}
		}
		cancel()
		<-done
	})
}

func TestKVBMMetricsAreServedOnTheirOwnAddress(t *testing.T) {
	cfg := testConfig(t)
	cfg.KVBM.Metrics = "127.0.0.1:0"
	a := startAgent(t, cfg)
	c := a.scheduler(t, 1)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	a.worker(t, c, 1)
	r := proto.RequestID{ID: 2}
	if err := c.Open(r, "", "", "", prompt(1, 4)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a retry is no new promise
		if hit, err := c.Lookup(t.Context(), r, 0, 4, 0); err != nil || hit.Ready != 3 {
			t.Fatalf("got %+v, error %v", hit, err)
		}
	}
	if _, err := c.Claim(t.Context(), r, 1, 0, make([]uint32, 3)); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseRequest(r); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request has ended", func() bool { return a.Stats().Cache.Requests == 1 })
	status, body := getFrom(t, a.kvbmTCP.Addr().String(), "/metrics")
	for _, want := range []string{
		"\nkvbm_offload_blocks_d2h 3\n", "\nkvbm_onboard_blocks_h2d 3\n", "\nkvbm_matched_tokens 48\n", "\nkvbm_host_cache_hit_rate 0.75\n",
	} {
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("status %d, want %q in\n%s", status, want, body)
		}
	}
}
