package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// routed sends a body that must be answered with 200, and decodes the answer.
func routed[T any](t *testing.T, h http.Handler, id, body string) T {
	t.Helper()
	var out T
	r := routertest.Call(t, h, "POST", "/v1/route", id, body)
	text := routertest.Text(t, r)
	if err := json.Unmarshal([]byte(text), &out); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%.80s: %d %s", body, r.StatusCode, text)
	}
	return out
}

// TestAnswersNameTheServer: its URL, and for a worker with several ranks the header.
func TestAnswersNameTheServer(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, g *registry.Source) {
		one, two := routertest.SomeWorker(1), routertest.SomeWorker(2)
		one.Endpoint, two.Endpoint, two.Ranks = "http://a:8000", "http://b:8000", 2
		for _, r := range []*registry.Registration{one, two} {
			if err := g.Register(r, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		b.Pass(2 * time.Second)
		h := New(b.Router, Options{}).Handler()
		for more, want := range map[string]string{
			`,"pinned_worker":{"worker_id":1}`:             `"endpoint":"http://a:8000"}`,
			`,"pinned_worker":{"worker_id":2,"dp_rank":1}`: `"endpoint":"http://b:8000","rank_header":{"X-data-parallel-rank":"1"}}`,
		} {
			if _, text := b.Route(h, "", routertest.NewBody(more, 1, 2)); !strings.HasSuffix(text, want) {
				t.Errorf("%s: %s, want %s at its end", more, text, want)
			}
		}
	})
}

// TestDryRunBooksNothing: update_states false decides as a booked request would, any number
// of times, and leaves no load and no prediction.
func TestDryRunBooksNothing(t *testing.T) {
	for _, events := range []bool{true, false} {
		c := routertest.Configured(func(c *config.Config) { c.FirstOfEqual, c.UseKVEvents = true, events })
		routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
			routertest.TwoWorkers(b)
			h := New(b.Router, Options{}).Handler()
			dry := routertest.NewBody(`,"update_states":false`, 1, 2, 3)
			first := routed[routeAnswer](t, h, "r", dry)
			for range 3 {
				if again := routed[routeAnswer](t, h, "r", dry); again.WorkerID != first.WorkerID || again.OverlapBlocks != first.OverlapBlocks {
					t.Errorf("events %v: %+v after %+v", events, again, first)
				}
			}
			if s := b.Router.Stats().Requests.Load; s.Requests != 0 || s.Added != 0 {
				t.Errorf("events %v: load %+v", events, s)
			}
			if r := routertest.Call(t, h, "POST", "/v1/route", "", dry); r.Header.Get(RequestIDHeader) != "" {
				t.Errorf("a dry run got the id %q", r.Header.Get(RequestIDHeader))
			}
			if booked := routed[routeAnswer](t, h, "r", routertest.NewBody(``, 1, 2, 3)); booked.WorkerID != first.WorkerID {
				t.Errorf("events %v: booked on %d, dry run said %d", events, booked.WorkerID, first.WorkerID)
			}
			if !b.Router.Free("", "r") {
				t.Error("the request is not booked")
			}
		})
	}
}

// TestExplanationHasThePartsOfTheCost: they add up to the cost, the chosen worker is first.
func TestExplanationHasThePartsOfTheCost(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		routed[routeAnswer](t, h, "busy", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 7, 8))
		explain := strings.Replace(routertest.NewBody("", 1, 2, 3), `"new"`, `"explain"`, 1)
		out := routed[routeAnswer](t, h, "", explain)
		if out.Method != "explain" || out.Explanation == nil || out.Explanation.Compared != 2 || len(out.Explanation.Workers) != 2 {
			t.Fatalf("answer %+v", out)
		}
		best, other := out.Explanation.Workers[0], out.Explanation.Workers[1]
		if best.WorkerID != out.WorkerID || best.WorkerID != 2 || best.Device != 1 || best.Host != 1 || other.PendingPrefill != 8 || other.ActiveRequests != 1 || other.ActiveBlocks != 2 {
			t.Errorf("workers %+v", out.Explanation.Workers)
		}
		for _, c := range out.Explanation.Workers {
			if got := (c.Weight*c.Prefill + c.Decode) * c.TaintFactor; got != c.Cost || !strings.HasPrefix(c.Formula, "Formula for worker_") {
				t.Errorf("parts give %v: %+v", got, c)
			}
			// The prompt has 12 tokens: 3 blocks.
			if want := max(0, float64(c.PendingPrefill)/4+3-c.Credit); c.Prefill != want {
				t.Errorf("worker %d: prefill %v, parts give %v", c.WorkerID, c.Prefill, want)
			}
		}
		if n := b.Router.Stats().Requests.Load.Requests; n != 1 {
			t.Errorf("%d requests are booked", n)
		}
		booked := routed[routeAnswer](t, h, "r", routertest.NewBody(`,"explain":true`, 1, 2, 3))
		if booked.Explanation == nil || booked.Explanation.Workers[0].Formula != best.Formula || !b.Router.Free("", "r") {
			t.Errorf("booked %+v", booked)
		}
	})
}

// TestAddedRequestsAreBooked: a request that the caller placed counts until it is freed.
func TestAddedRequestsAreBooked(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		add := func(more string) string {
			return `{"method":"add_request","tokens":` + routertest.TokensJSON(sourcetest.Tokens(1, 2, 3)) + more + `}`
		}
		out := routed[markAnswer](t, h, "r", add(`,"worker":{"worker_id":1},"cached_tokens":4`))
		if out != (markAnswer{Method: "request_added", Success: true}) {
			t.Errorf("answer %+v", out)
		}
		if s := b.Router.Stats().Requests.Load; s.Requests != 1 || s.Blocks != 3 {
			t.Errorf("load %+v", s)
		}
		for _, c := range []struct {
			id, more string
			status   int
			want     string
		}{
			{"r", `,"worker":{"worker_id":1}`, 409, "active already"},
			{"s", ``, 400, "worker"},
			{"s", `,"worker":{"worker_id":9}`, 404, "worker"},
			{"s", `,"worker":{"worker_id":1,"dp_rank":3}`, 404, "worker"},
			{"", `,"worker":{"worker_id":1}`, 400, "request_id"},
			{"s", `,"worker":{"worker_id":1},"timeout_ms":1`, 400, "timeout_ms"},
		} {
			if r, text := b.Route(h, c.id, add(c.more)); r.StatusCode != c.status || !strings.Contains(text, c.want) {
				t.Errorf("%s %s: %d %s, want %d %s", c.id, c.more, r.StatusCode, text, c.status, c.want)
			}
		}
		if !b.Router.Free("", "r") || b.Router.Stats().Requests.Load.Requests != 0 {
			t.Error("the request is not booked once")
		}
	})
}

// TestRecordedDecisionsArePredicted: without events the prompt counts as held by the worker.
func TestRecordedDecisionsArePredicted(t *testing.T) {
	for _, events := range []bool{false, true} {
		c := routertest.Configured(func(c *config.Config) { c.FirstOfEqual, c.UseKVEvents = true, events })
		routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
			routertest.TwoWorkers(b)
			h := New(b.Router, Options{}).Handler()
			body := `{"method":"record_routing_decision","tokens":` + routertest.TokensJSON(sourcetest.Tokens(5, 6)) + `,"worker":{"worker_id":2}}`
			r, text := b.Route(h, "", body)
			if events {
				if r.StatusCode != http.StatusConflict || !strings.Contains(text, "recorded only") {
					t.Errorf("with events: %d %s", r.StatusCode, text)
				}
				return
			}
			if r.StatusCode != http.StatusOK || text != `{"method":"routing_decision_recorded","success":true}` {
				t.Errorf("%d %s", r.StatusCode, text)
			}
			if out := routed[routeAnswer](t, h, "", routertest.NewBody(`,"update_states":false`, 5, 6)); out.WorkerID != 2 || out.OverlapBlocks != 2 {
				t.Errorf("answer %+v", out)
			}
		})
	}
}

// TestWorkersAreRegisteredByTheirIds: only where registration is open; workers that announce
// themselves stay.
func TestWorkersAreRegisteredByTheirIds(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, g *registry.Source) {
		b.Send(b.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
		a := New(b.Router, Options{})
		const body = `{"method":"register_workers","model":"m","worker_ids":[1,5,6]}`
		if r, text := b.Route(a.Handler(), "", body); r.StatusCode != http.StatusForbidden || !strings.Contains(text, "control listener") {
			t.Errorf("client's listener: %d %s", r.StatusCode, text)
		}
		if out := routed[registeredAnswer](t, a.ControlHandler(), "", body); out != (registeredAnswer{"workers_registered", 2, 1, defaultTTL}) {
			t.Errorf("answer %+v", out)
		}
		b.Pass(2 * time.Second)
		var ids []kv.WorkerID
		for _, w := range b.Router.Workers() {
			ids = append(ids, w.Worker.ID)
			if w.BlockSize != sourcetest.BlockSize {
				t.Errorf("worker %+v", w)
			}
		}
		if len(ids) != 3 {
			t.Errorf("workers %v", ids)
		}
		b.Pass((defaultTTL + 5) * time.Second)
		for bad, want := range map[string]string{
			`{"method":"register_workers","model":"m"}`:                                                    "worker_ids",
			`{"method":"register_workers","worker_ids":[5]}`:                                               "model",
			`{"method":"register_workers","model":"m","worker_ids":[0]}`:                                   "worker_id",
			`{"method":"register_workers","model":"other","worker_ids":[5]}`:                               "block_size",
			`{"method":"register_workers","model":"m","block_size":4,"worker_ids":[5],"ttl_seconds":9999}`: "ttl_seconds",
		} {
			if r, text := b.Route(a.ControlHandler(), "", bad); r.StatusCode != http.StatusBadRequest || !strings.Contains(text, want) {
				t.Errorf("%s: %d %s", bad, r.StatusCode, text)
			}
		}
	})
}
