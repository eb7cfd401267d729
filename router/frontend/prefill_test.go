package frontend_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/split"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// whole is the answer of a worker that only prefills.
const whole = `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`

// transferred is the answer of a prefill worker with the NixlConnector of vLLM 0.32.
const transferred = `{"choices":[],"kv_transfer_params":{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[3, 4]], ` +
	`"remote_engine_id": "e1", "remote_request_id": "cmpl-1", "remote_host": "10.0.0.1", "remote_port": 5600, "tp_size": 1, "dcp_size": 1, ` +
	`"pp_size": 1, "remote_num_tokens": 64, "remote_blocks_expiry_time": null, "transfer_mode": "pull"}}`

// disaggregate makes worker 1 of a bench a prefill worker and worker 2 a decode worker, of one pool or
// of vLLM with connectors of its own.
func disaggregate(b *bench, way split.Way) {
	for i, w := range b.directory.workers {
		w.Role, w.Facts.Engine = workers.RolePrefill, workers.EngineVLLM
		if i > 0 {
			w.Role = workers.RoleDecode
		}
		if way == split.Yard {
			w.Pool = 42
		}
	}
}

// splitBench is a bench with a prefill worker and a decode worker.
func splitBench(t *testing.T, way split.Way, o frontend.Options, prefill, decode http.HandlerFunc) (b *bench, p, d *server) {
	t.Helper()
	p, d = newServer(t, 1, prefill), newServer(t, 2, decode)
	b = newBench(t, o, p, d)
	disaggregate(b, way)
	return b, p, d
}

// expectSplits compares the counter of split requests.
func (b *bench) expectSplits(result string, want int) {
	b.t.Helper()
	line := fmt.Sprintf("blockyard_frontend_disaggregated_prefills_total{result=%q} %d\n", result, want)
	if got := metricsOf(b.t, b.router); !strings.Contains(got, line) {
		b.t.Errorf("metrics lack %q", strings.TrimSpace(line))
	}
}

// One worker computes the prompt, and the other one gets the request as it came, with the
// blocks to wait for.
func TestPrefillThroughTheYard(t *testing.T) {
	b, p, d := splitBench(t, split.Yard, frontend.Options{Split: frontend.Split{Wait: 250 * time.Millisecond}},
		answers(200, whole), streams(chunk, usageOnly, "[DONE]"))
	asked := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":5,"min_tokens":3,"n":2,"logprobs":1,"seed":7,"stream":true}`
	resp, body := b.post("/v1/completions", asked)
	if want := "data: " + chunk + "\n\ndata: [DONE]\n\n"; resp.StatusCode != 200 || body != want {
		t.Fatalf("status %d, body %s, want %s", resp.StatusCode, body, want)
	}
	if got, want := p.got(), `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":1,"seed":7,"stream":false}`; len(got) != 1 || got[0] != want {
		t.Errorf("the prefill worker got %s\nwant %s", got, want)
	}
	want := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":5,"min_tokens":3,"n":2,"logprobs":1,"seed":7,"stream":true,` +
		`"stream_options":{"include_usage":true},"kv_transfer_params":{"blockyard":{"await":2,"deadline_ms":250}}}`
	if got := d.got(); len(got) != 1 || got[0] != want {
		t.Errorf("the decode worker got %s\nwant %s", got, want)
	}
	for name, want := range map[string]string{frontend.WorkerHeader: "2/0", frontend.PrefillHeader: "1/0", frontend.PredictedHeader: "8"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	b.expectSplits("yard", 1)
	b.expectIdle()
}

// What the prefill worker's engine says of its blocks reaches the decode worker as it is.
func TestPrefillByTheEnginesOwnConnectors(t *testing.T) {
	b, p, d := splitBench(t, split.Engines, frontend.Options{}, answers(200, transferred), streams(chunk, "[DONE]"))
	if resp, body := b.post("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a"}],"max_completion_tokens":5}`); resp.StatusCode != 200 {
		t.Fatalf("unknown tokens: status %d, %s", resp.StatusCode, body)
	}
	b.expectSplits(split.UnknownPrompt, 1)
	if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 200 {
		t.Fatalf("status %d, %s", resp.StatusCode, body)
	}
	var asked struct {
		Params map[string]any `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(p.got()[0]), &asked); err != nil {
		t.Fatal(err)
	}
	if asked.Params["do_remote_decode"] != true || asked.Params["do_remote_prefill"] != false {
		t.Errorf("the prefill worker got %v", asked.Params)
	}
	_, params, _ := strings.Cut(transferred, `"kv_transfer_params":`)
	if got := d.got()[1]; !strings.Contains(got, `"kv_transfer_params":`+strings.TrimSuffix(params, "}")) {
		t.Errorf("the decode worker got %s", got)
	}
	b.expectSplits("engines", 1)
	b.expectIdle()
}

// A prefill worker whose engine hands nothing over is not asked again for a while.
func TestPrefillWithoutAConnector(t *testing.T) {
	b, p, d := splitBench(t, split.Engines, frontend.Options{}, answers(200, whole), streams(chunk, "[DONE]"))
	for range 3 {
		if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 200 {
			t.Fatalf("status %d, %s", resp.StatusCode, body)
		}
	}
	if len(p.got()) != 1 || len(d.got()) != 3 || strings.Contains(d.got()[0], "kv_transfer_params") {
		t.Errorf("the workers got %d and %q", len(p.got()), d.got())
	}
	b.expectSplits("not_handed_over", 1)
	b.expectSplits(split.NoPartner, 2)
	b.expectIdle()
}

// When the prefill fails, the decode worker serves the request alone, and bookings are freed.
func TestPrefillFails(t *testing.T) {
	for name, c := range map[string]struct {
		prefill http.HandlerFunc
		result  string
		outcome workers.Outcome
	}{
		"connection ends": {dies(), "died", workers.OutcomeFailed},
		"status 503":      {answers(503, `{"error":{"message":"busy"}}`), "status", workers.OutcomeFailed},
		"status 400":      {answers(400, `{"error":{"message":"no"}}`), "status", workers.OutcomeClient},
		"too slow":        {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "prefill_timeout", workers.OutcomeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			o := frontend.Options{Split: frontend.Split{Timeout: time.Minute}}
			if name == "too slow" {
				o.Split.Timeout = 50 * time.Millisecond
			}
			b, _, d := splitBench(t, split.Yard, o, c.prefill, streams(chunk, "[DONE]"))
			resp, body := b.post("/v1/completions", prompt)
			if resp.StatusCode != 200 || !strings.Contains(body, chunk) {
				t.Errorf("status %d, body %s", resp.StatusCode, body)
			}
			if got := d.got(); len(got) != 1 || strings.Contains(got[0], "kv_transfer_params") {
				t.Errorf("the decode worker got %q, want the request alone", got)
			}
			if got := resp.Header.Get(frontend.PrefillHeader); got != "" {
				t.Errorf("%s is %q", frontend.PrefillHeader, got)
			}
			if got := b.directory.outcomes(); len(got) != 2 || got[0] != c.outcome {
				t.Errorf("outcomes %v, want %v first", got, c.outcome)
			}
			b.expectSplits(c.result, 1)
			b.expectIdle()
		})
	}
}

// A request that kills the prefill worker and then the decode worker is refused.
func TestPrefillCountsDeaths(t *testing.T) {
	b, p, d := splitBench(t, split.Yard, frontend.Options{}, dies(), dies())
	resp, body := b.post("/v1/completions", prompt)
	if _, code := errorOf(t, body); resp.StatusCode != 400 || code != "fatal_request" {
		t.Errorf("status %d, code %s; want 400, fatal_request", resp.StatusCode, code)
	}
	if len(p.got()) != 1 || len(d.got()) != 1 {
		t.Errorf("the workers got %d and %d requests, want one each", len(p.got()), len(d.got()))
	}
	b.expectIdle()
}

// A decode worker that fails is replaced by another one, which gets the request alone.
func TestDecodeWorkerIsReplaced(t *testing.T) {
	var failed atomic.Bool
	decode := func(w http.ResponseWriter, r *http.Request) {
		if failed.CompareAndSwap(false, true) {
			panic(http.ErrAbortHandler)
		}
		streams(chunk, "[DONE]")(w, r)
	}
	p, one, two := newServer(t, 1, answers(200, whole)), newServer(t, 2, decode), newServer(t, 3, decode)
	b := newBench(t, frontend.Options{}, p, one, two)
	disaggregate(b, split.Yard)
	if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 200 || !strings.Contains(body, chunk) {
		t.Errorf("status %d, body %s", resp.StatusCode, body)
	}
	if got := append(one.got(), two.got()...); len(p.got()) != 1 || len(got) != 2 {
		t.Errorf("the workers got %d and %d requests, want 1 and 2", len(p.got()), len(got))
	}
	b.expectIdle()
}

// The end of a request's time during the prefill ends it, and no decode worker is asked.
func TestDeadlineDuringThePrefill(t *testing.T) {
	gone := make(chan struct{})
	b, _, d := splitBench(t, split.Yard, frontend.Options{}, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	}, streams(chunk))
	resp, body := b.post("/v1/completions", prompt, frontend.TimeoutHeader, "50")
	if _, code := errorOf(t, body); resp.StatusCode != 504 || code != "deadline" {
		t.Errorf("status %d, code %s; want 504, deadline", resp.StatusCode, code)
	}
	<-gone
	if got := d.got(); len(got) != 0 {
		t.Errorf("the decode worker got %q", got)
	}
	b.expectIdle()
}

// Requests that would show the prefill, or that are too short, stay whole.
func TestWholeRequests(t *testing.T) {
	b, p, d := splitBench(t, split.Yard, frontend.Options{Split: frontend.Split{Rule: split.Rule{MinTokens: 5}}},
		answers(200, whole), answers(200, whole))
	for body, why := range map[string]string{
		`{"model":"m","prompt":[1,2,3,4]}`:                                 split.Short,
		`{"model":"m","prompt":[1,2,3,4,5],"echo":true}`:                   split.Unsupported,
		`{"model":"m","prompt":[1,2,3,4,5],"prompt_logprobs":1}`:           split.Unsupported,
		`{"model":"m","prompt":[1,2,3,4,5],"use_beam_search":true}`:        split.Unsupported,
		`{"model":"m","prompt":[1,2,3,4,5],"max_tokens":1}`:                split.Unsupported,
		`{"model":"m","prompt":[[1,2,3,4,5],[1,2,3,4,6]]}`:                 split.Unsupported,
		`{"model":"m","prompt":"a text of which nobody knows the tokens"}`: split.UnknownPrompt,
	} {
		before := len(d.got())
		if resp, got := b.post("/v1/completions", body); resp.StatusCode != 200 || len(d.got()) != before+1 {
			t.Errorf("%s: status %d, %s", body, resp.StatusCode, got)
		}
		if got := metricsOf(t, b.router); !strings.Contains(got, fmt.Sprintf("disaggregated_prefills_total{result=%q}", why)) {
			t.Errorf("%s: not counted as %s", body, why)
		}
	}
	if got := p.got(); len(got) != 0 {
		t.Errorf("the prefill worker got %q", got)
	}
	b.expectIdle()
}

// A worker of a role gets nothing else: without a decode worker there is no worker.
func TestPrefillWorkersServeNothingElse(t *testing.T) {
	p := newServer(t, 1, answers(200, whole))
	b := newBench(t, frontend.Options{}, p)
	disaggregate(b, split.Yard)
	resp, body := b.post("/v1/completions", prompt)
	if _, code := errorOf(t, body); resp.StatusCode != 503 || code != "no_workers" || len(p.got()) != 0 {
		t.Errorf("status %d, code %s, the worker got %q", resp.StatusCode, code, p.got())
	}
	b.expectSplits(split.NoPartner, 1)
}

// With Dynamo's conditional rule, a busy prefill worker leaves the prompt to a decode worker.
func TestBusyPrefillWorker(t *testing.T) {
	limit := 0.5
	ro := router.Options{Config: routertest.Configured(func(c *config.Config) { c.RouterMode = config.ModeKV })}
	rule := split.Rule{Conditional: &split.Conditional{PrefillBusy: &limit}}
	p, d := newServer(t, 1, answers(200, whole)), newServer(t, 2, streams(chunk, "[DONE]"))
	b := newBenchOn(t, ro, frontend.Options{Split: frontend.Split{Rule: rule}}, p, d)
	disaggregate(b, split.Yard)
	for _, w := range b.directory.workers {
		w.MaxBatchedTokens = 16
	}
	model, err := b.router.Model("m")
	if err != nil {
		t.Fatal(err)
	}
	busy := &router.Request{ID: "busy", Model: "m", Tokens: make([]uint32, 12)}
	if err := model.Decide().AddRequest(busy, kv.Worker{ID: 1}, 0); err != nil {
		t.Fatal(err)
	}
	if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 200 || len(p.got()) != 0 {
		t.Errorf("status %d, %s, the prefill worker got %q", resp.StatusCode, body, p.got())
	}
	b.expectSplits(split.Busy, 1)
	model.Decide().Free("busy")
	if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 200 || len(p.got()) != 1 {
		t.Errorf("status %d, %s, the prefill worker got %q", resp.StatusCode, body, p.got())
	}
	b.expectIdle()
}

// metricsOf returns what GET /metrics shows of a router.
func metricsOf(t testing.TB, r *router.Router) string {
	t.Helper()
	shown := httptest.NewRecorder()
	r.Metrics().Handler().ServeHTTP(shown, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return shown.Body.String()
}

// Each worker is booked for its own part alone: the prefill worker until its answer, the decode
// worker without anything to prefill.
func TestBookingsOfBothParts(t *testing.T) {
	type load struct{ prefill, decode int }
	seen := make(chan [2]load, 2)
	var b *bench
	look := func() {
		model, err := b.router.Model("m")
		if err != nil {
			t.Error(err)
			return
		}
		loads, err := model.Decide().GetPotentialLoads(&router.Request{})
		if err != nil || len(loads) != 2 {
			t.Errorf("loads %v, %v", loads, err)
			return
		}
		var now [2]load
		for i, l := range loads {
			now[i] = load{l.PrefillTokens, l.DecodeBlocks}
		}
		seen <- now
	}
	p := newServer(t, 1, func(w http.ResponseWriter, r *http.Request) { look(); answers(200, whole)(w, r) })
	d := newServer(t, 2, func(w http.ResponseWriter, r *http.Request) { look(); streams(chunk, "[DONE]")(w, r) })
	b = newBench(t, frontend.Options{}, p, d)
	disaggregate(b, split.Yard)
	if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 200 {
		t.Fatalf("status %d, %s", resp.StatusCode, body)
	}
	if got, want := <-seen, ([2]load{{9, 2}, {}}); got != want {
		t.Errorf("during the prefill the loads are %v, want %v", got, want)
	}
	if got, want := <-seen, ([2]load{{}, {0, 2}}); got != want {
		t.Errorf("during the decode the loads are %v, want %v", got, want)
	}
	b.expectIdle()
}

// Every way to compare workers takes the overrides of the decode worker.
func TestPrefillInEveryScore(t *testing.T) {
	for name, set := range map[string]func(*config.Config){
		"weights":     func(*config.Config) {},
		"cost":        func(c *config.Config) { c.Score = config.ScorePrice },
		"conditional": func(c *config.Config) { c.ConditionalDisaggEnabled = true },
		"round-robin": func(c *config.Config) { c.RouterMode = config.ModeRoundRobin },
	} {
		t.Run(name, func(t *testing.T) {
			p, d := newServer(t, 1, answers(200, whole)), newServer(t, 2, streams(chunk, "[DONE]"))
			b := newBenchOn(t, router.Options{Config: routertest.Configured(set)}, frontend.Options{}, p, d)
			disaggregate(b, split.Yard)
			resp, body := b.post("/v1/completions", prompt)
			if resp.StatusCode != 200 || resp.Header.Get(frontend.PrefillHeader) != "1/0" || len(d.got()) != 1 || !strings.Contains(d.got()[0], "blockyard") {
				t.Errorf("status %d, %s; the decode worker got %q", resp.StatusCode, body, d.got())
			}
			b.expectIdle()
		})
	}
}
