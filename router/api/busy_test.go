package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
)

func rankOwner(worker kv.WorkerID, rank kv.DPRank) kv.Owner {
	return kv.WorkerOwner(kv.Worker{ID: worker, Rank: rank})
}

// Busy thresholds can be read and changed while the router runs: what is not named
// stays, and what is wrong changes nothing.
func TestBusyThresholdsChangeWhileTheRouterRuns(t *testing.T) {
	half := 0.5
	routertest.OnBench(t, router.Options{Config: routertest.Configured(func(c *config.Config) { c.ActiveDecodeBlocksThreshold = &half })}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		ask := func(method, body string, status int, want string) {
			t.Helper()
			r := routertest.Call(t, New(b.Router, Options{}).ControlHandler(), method, "/busy_threshold", "", body)
			if got := routertest.Text(t, r); r.StatusCode != status || !strings.Contains(got, want) {
				t.Errorf("%s %s: %d %s, want %d %s", method, body, r.StatusCode, got, status, want)
			}
		}
		ask("GET", "", 200, `{"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":null}`)
		ask("POST", `{"active_prefill_tokens_threshold":3}`, 200, `{"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":3,`)
		b.Route(h, "r1", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 50))
		if r, got := b.Route(h, "r2", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 51)); r.StatusCode != 529 {
			t.Errorf("beyond the new threshold: %d %s", r.StatusCode, got)
		}
		for body, want := range map[string]string{
			`{"active_decode_blocks_threshold":2}`:                "active decode blocks threshold: 2 is not in 0..1",
			`{"active_decode_blocks_threshold":0.7,"modell":"m"}`: `unknown field \"modell\"`,
			`{"active_prefill_tokens_threshold":-1}`:              "-1 is negative",
			`{"active_prefill_tokens_threshold":"a"}`:             "active_prefill_tokens_threshold",
			`{"active_prefill_tokens_threshold":4} x`:             "something follows",
			`{"active_prefill_tokens_threshold":4`:                "not a whole JSON value",
			`{"active_prefill_tokens_threshold_frac":-0.5}`:       "-0.5 is not in 0..",
		} {
			ask("POST", body, 400, want)
		}
		ask("POST", `{"model":"another","active_prefill_tokens_threshold":5}`, 404, "no worker serves the model")
		ask("POST", `{"model":"`+b.Router.Workers()[0].Model+`","active_prefill_tokens_threshold":null}`, 200, `{"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":null,`)
		if r, got := b.Route(h, "r2", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 51)); r.StatusCode != http.StatusOK {
			t.Errorf("without the threshold: %d %s", r.StatusCode, got)
		}
	})
	if half != 0.5 {
		t.Errorf("the configuration was changed to %v", half)
	}
}

// A pin without a rank means the only rank of a worker, and is an error where there are
// several.
func TestPinWithoutARank(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		b.Send(b.Publisher(0x11, rankOwner(1, 3), 0).Announce())
		h := New(b.Router, Options{}).Handler()
		for i, c := range []struct {
			pin    string
			status int
			want   string
		}{
			{`{"worker_id":1}`, 200, `"worker_id":1,"dp_rank":3`},
			{`{"worker_id":1,"dp_rank":0}`, 503, "no workers"},
			{`{"worker_id":9}`, 503, "no workers"},
			{`{"worker_id":1}`, 400, "pinned_worker: worker 1 has several ranks"},
			{`{"worker_id":1,"dp_rank":4}`, 200, `"dp_rank":4`},
		} {
			if i == 3 {
				b.Send(b.Publisher(0x12, rankOwner(1, 4), 0).Announce())
			}
			if r, got := b.Route(h, "", routertest.NewBody(`,"pinned_worker":`+c.pin, 1)); r.StatusCode != c.status || !strings.Contains(got, c.want) {
				t.Errorf("%s: %d %s, want %d %s", c.pin, r.StatusCode, got, c.status, c.want)
			}
		}
	})
}
