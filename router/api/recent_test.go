package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// An explanation says which tokens the chosen worker will have to compute, and why.
func TestExplanationHasMisses(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		p := b.Transport.Known(0x12)
		b.Pass(time.Second)
		left := sourcetest.Tokens(1, 5)
		b.Send(p.Store(kv.TierDevice, left), source.Frame{Kind: source.FrameEvents, Data: p.Add(kvevent.Removed, kv.TierDevice, left, 1)})
		b.Pass(3 * time.Second)
		h := New(b.Router, Options{}).Handler()
		_, text := b.Route(h, "", `{"method":"explain","tokens":`+routertest.TokensJSON(sourcetest.Tokens(1, 5, 6))+`,"pinned_worker":{"worker_id":1,"dp_rank":0}}`)
		want := `"misses":[{"cause":"evicted","tokens":4,"owner":"worker 2/0","tier":"device","ago_ms":3000},{"cause":"last_block","tokens":4}]`
		if !strings.Contains(text, want) {
			t.Errorf("the explanation %s lacks %s", text, want)
		}
	})
}

// GET /v1/misses has the last requests, newest first, and the sums by cause.
func TestMissesOfRequests(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		h := New(b.Router, Options{}).Handler()
		b.Router.Misses().Add(&miss.Entry{Request: "old"})
		b.Router.Misses().Add(&miss.Entry{Request: "r", Model: "m", Worker: "1/0", At: time.Now(), Tokens: 9, Predicted: 8, Delivered: 4, Report: miss.Report{
			Parts:      []miss.Part{{Cause: miss.IndexBehind, Tokens: 4, Owner: sourcetest.WorkerOwner(1), Tier: kv.TierHost, Behind: 7 * time.Millisecond}, {Cause: miss.LastBlock, Tokens: 1}},
			Difference: miss.Part{Cause: miss.IndexBehind, Tokens: -4}}})
		r := routertest.Call(b.T, h, "GET", "/v1/misses?limit=1", "", "")
		text := routertest.Text(b.T, r)
		want := `"requests":[{"request_id":"r","model":"m","worker":"1/0","age_seconds":0,"prompt_tokens":9,"cached_predicted":8,"cached_delivered":4,"difference":"index_behind",` +
			`"misses":[{"cause":"index_behind","tokens":4,"owner":"worker 1/0","tier":"host_pinned","behind_ms":7},{"cause":"last_block","tokens":1}]}]}`
		if !strings.HasSuffix(text, want) {
			t.Errorf("answer\n%s\nwant it to end\n%s", text, want)
		}
		var answer missesAnswer
		if err := json.Unmarshal([]byte(text), &answer); err != nil || !answer.Explained || answer.Tokens["index_behind"] != 4 {
			t.Errorf("%v: %+v", err, answer)
		}
		for _, limit := range []string{"-1", "1025", "x"} {
			if r := routertest.Call(b.T, h, "GET", "/v1/misses?limit="+limit, "", ""); r.StatusCode != http.StatusBadRequest || !strings.Contains(routertest.Text(b.T, r), "0..1024") {
				t.Errorf("limit %s: status %d", limit, r.StatusCode)
			}
		}
	})
}

// Without a memory of evicted blocks nothing is explained.
func TestNoMissesAreExplained(t *testing.T) {
	o := router.Options{Config: routertest.Configured(func(c *config.Config) { c.MissMemoryBlocks = 0 })}
	routertest.OnBench(t, o, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		if _, text := b.Route(h, "", `{"method":"explain","tokens":`+routertest.TokensJSON(sourcetest.Tokens(1, 5))+`}`); strings.Contains(text, "misses") {
			t.Errorf("the explanation has misses: %s", text)
		}
		if text := routertest.Text(b.T, routertest.Call(b.T, h, "GET", "/v1/misses", "", "")); !strings.Contains(text, `"explained":false`) {
			t.Errorf("answer %s", text)
		}
	})
}
