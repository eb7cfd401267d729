package frontend_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/workers"
)

const prompt = `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":2,"stream":true}`

// A stream reaches the client byte for byte, without the usage that the door asked for.
func TestStream(t *testing.T) {
	s := newServer(t, 7, streams(chunk, lastChunk, usageOnly, "[DONE]"))
	b := newBench(t, frontend.Options{}, s)
	resp, body := b.post("/v1/completions", prompt)
	want := "data: " + chunk + "\n\ndata: " + lastChunk + "\n\ndata: [DONE]\n\n"
	if resp.StatusCode != 200 || body != want {
		t.Errorf("status %d, body\n%s\nwant\n%s", resp.StatusCode, body, want)
	}
	if got := s.got()[0]; !strings.Contains(got, `"stream_options":{"include_usage":true}`) {
		t.Errorf("the worker got %s, without stream_options", got)
	}
	for name, want := range map[string]string{frontend.WorkerHeader: "7/0", frontend.PredictedHeader: "0", frontend.QualityHeader: "fallback", frontend.ScoreHeader: "weights"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := resp.Trailer.Get(frontend.DeliveredHeader); got != "4" {
		t.Errorf("trailer %s is %q, want 4", frontend.DeliveredHeader, got)
	}
	b.expectIdle()
}

// A client that asks for the usage event gets it, and its body is not edited.
func TestUsageAsked(t *testing.T) {
	s := newServer(t, 7, streams(chunk, usageOnly, "[DONE]"))
	b := newBench(t, frontend.Options{}, s)
	asked := strings.Replace(prompt, `"stream"`, `"stream_options":{"include_usage":true}, "stream"`, 1)
	if _, body := b.post("/v1/completions", asked); !strings.Contains(body, usageOnly) {
		t.Errorf("the answer lacks the usage: %s", body)
	}
	if got := s.got()[0]; got != asked {
		t.Errorf("the worker got %s, want %s", got, asked)
	}
}

// An answer that is not streamed comes whole, with the delivered tokens in a header.
func TestWhole(t *testing.T) {
	body := `{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`
	s := newServer(t, 7, answers(200, body))
	b := newBench(t, frontend.Options{}, s)
	resp, got := b.post("/v1/completions", strings.Replace(prompt, "true", "false", 1))
	if got != body || resp.Header.Get(frontend.DeliveredHeader) != "8" {
		t.Errorf("body %s, delivered %q; want %s, 8", got, resp.Header.Get(frontend.DeliveredHeader), body)
	}
	b.expectIdle()
}

// A failure before the first data event is retried once, on another worker.
func TestRetry(t *testing.T) {
	good := "data: " + chunk + "\n\ndata: [DONE]\n\n"
	for name, failure := range map[string]http.HandlerFunc{
		"connection ends":    dies(),
		"status 503":         answers(503, `{"error":{"message":"busy"}}`),
		"first event: error": streams(`{"error":{"message":"engine died","code":500}}`),
		"empty stream":       streams(),
	} {
		t.Run(name, func(t *testing.T) {
			var once sync.Once
			fail := func(w http.ResponseWriter, r *http.Request) {
				failed := false
				once.Do(func() { failed = true })
				if failed {
					failure(w, r)
					return
				}
				streams(chunk, "[DONE]")(w, r)
			}
			one, two := newServer(t, 1, fail), newServer(t, 2, fail)
			b := newBench(t, frontend.Options{}, one, two)
			resp, body := b.post("/v1/completions", prompt)
			if resp.StatusCode != 200 || body != good {
				t.Errorf("status %d, body %s", resp.StatusCode, body)
			}
			if len(one.got()) != 1 || len(two.got()) != 1 {
				t.Errorf("the workers got %d and %d requests, want one each", len(one.got()), len(two.got()))
			}
			b.expectIdle()
		})
	}
}

// A stream that breaks off after its first event is not retried, and the client is told.
func TestBrokenOff(t *testing.T) {
	one, two := newServer(t, 1, dies(chunk)), newServer(t, 2, dies(chunk))
	b := newBench(t, frontend.Options{}, one, two)
	_, body := b.post("/v1/completions", prompt)
	first, rest, _ := strings.Cut(body, "\n\n")
	if first != "data: "+chunk {
		t.Errorf("first event %q", first)
	}
	if message, code := errorOf(t, strings.TrimPrefix(strings.TrimSpace(rest), "data: ")); code != "worker_lost" {
		t.Errorf("error %q with code %s, want worker_lost", message, code)
	}
	if n := len(one.got()) + len(two.got()); n != 1 {
		t.Errorf("the workers got %d requests, want 1", n)
	}
	b.expectIdle()
}

// A stream that ends without its last event is broken off too, also when the connection ends
// well. A stream whose protocol has no such event, and one with an error in it, end as they came.
func TestEndWithoutDone(t *testing.T) {
	const failed = `{"error":{"message":"engine died","code":500}}`
	for _, c := range []struct {
		path   string
		events []string
		lost   bool
		want   workers.Outcome
	}{
		{"/v1/completions", []string{chunk}, true, workers.OutcomeFailed},
		{"/v1/chat/completions", []string{chunk, lastChunk}, true, workers.OutcomeFailed},
		{"/v1/completions", []string{chunk, failed}, false, workers.OutcomeFailed},
		{"/v1/completions", []string{chunk, failed, "[DONE]"}, false, workers.OutcomeOK},
		{"/v1/messages", []string{`{"type":"message_stop"}`}, false, workers.OutcomeOK},
	} {
		b := newBench(t, frontend.Options{}, newServer(t, 7, streams(c.events...)))
		_, body := b.post(c.path, `{"messages":[],"prompt":[1],"max_tokens":2,"stream":true}`)
		sent := "data: " + strings.Join(c.events, "\n\ndata: ") + "\n\n"
		rest, ok := strings.CutPrefix(body, sent)
		if !ok || strings.Contains(rest, `"code":"worker_lost"`) != c.lost || !c.lost && rest != "" {
			t.Errorf("%s %q: the client got %q", c.path, c.events, body)
		}
		b.expectIdle()
		if got := b.directory.outcomes(); len(got) != 1 || got[0] != c.want {
			t.Errorf("%s %q: outcomes %v, want %v", c.path, c.events, got, c.want)
		}
	}
}

// A request that was at two workers when they died is refused from then on.
func TestFatalRequest(t *testing.T) {
	one, two := newServer(t, 1, dies()), newServer(t, 2, dies())
	b := newBench(t, frontend.Options{}, one, two)
	for range 2 {
		resp, body := b.post("/v1/completions", prompt)
		if _, code := errorOf(t, body); resp.StatusCode != 400 || code != "fatal_request" {
			t.Errorf("status %d, code %s; want 400, fatal_request", resp.StatusCode, code)
		}
	}
	if n := len(one.got()) + len(two.got()); n != 2 {
		t.Errorf("the workers got %d requests, want 2", n)
	}
	b.expectIdle()
}

// An error that is the request's fault is passed on, and is not retried.
func TestClientError(t *testing.T) {
	body := `{"error":{"message":"temperature: too hot","code":400}}`
	one, two := newServer(t, 1, answers(400, body)), newServer(t, 2, answers(400, body))
	b := newBench(t, frontend.Options{}, one, two)
	if resp, got := b.post("/v1/completions", prompt); resp.StatusCode != 400 || got != body {
		t.Errorf("status %d, body %s", resp.StatusCode, got)
	}
	if n := len(one.got()) + len(two.got()); n != 1 {
		t.Errorf("the workers got %d requests, want 1", n)
	}
	if got := b.directory.outcomes(); !slices.Equal(got, []workers.Outcome{workers.OutcomeClient}) {
		t.Errorf("outcomes %v, want the client's fault", got)
	}
}

// A stream whose first event is an error of the request is passed on, and is not retried.
func TestFirstEventIsTheClientsError(t *testing.T) {
	event := `{"error":{"message":"bad grammar","code":400}}`
	one, two := newServer(t, 1, streams(event, "[DONE]")), newServer(t, 2, streams(event, "[DONE]"))
	b := newBench(t, frontend.Options{}, one, two)
	if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 200 || !strings.Contains(body, event) {
		t.Errorf("status %d, body %s", resp.StatusCode, body)
	}
	if n := len(one.got()) + len(two.got()); n != 1 {
		t.Errorf("the workers got %d requests, want 1", n)
	}
}

// An answer too long to keep that breaks off does not look whole.
func TestLongAnswerBreaksOff(t *testing.T) {
	s := newServer(t, 7, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for range 9 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	b := newBench(t, frontend.Options{}, s)
	resp, err := http.Post(b.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":[1,2,3]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // broken off
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("the client got %d bytes and a proper end", n)
	}
	b.expectIdle()
}

// Wrong requests get an error that names what is wrong, and reach no worker.
func TestRefused(t *testing.T) {
	s := newServer(t, 7, streams(chunk))
	b := newBench(t, frontend.Options{MaxBody: 200}, s)
	for _, c := range []struct {
		name, path, body string
		headers          []string
		status           int
		message          string
	}{
		{"bad JSON", "/v1/completions", `{"model"`, nil, 400, "body"},
		{"not an object", "/v1/completions", `[]`, nil, 400, "body"},
		{"unknown model", "/v1/completions", `{"model":"x","prompt":[1]}`, nil, 404, `"x"`},
		{"long body", "/v1/completions", `{"prompt":"` + strings.Repeat("a", 200) + `"}`, nil, 413, "200 bytes"},
		{"kv_transfer_params", "/v1/completions", `{"prompt":[1],"kv_transfer_params":{}}`, nil, 400, "kv_transfer_params"},
		{"rank header", "/v1/completions", `{"prompt":[1]}`, []string{"X-data-parallel-rank", "1"}, 400, "X-Data-Parallel-Rank"},
		{"token out of range", "/v1/completions", `{"prompt":[4294967296]}`, nil, 400, "prompt"},
		{"timeout", "/v1/completions", `{"prompt":[1]}`, []string{frontend.TimeoutHeader, "soon"}, 400, frontend.TimeoutHeader},
		{"pinned worker", "/v1/completions", `{"prompt":[1]}`, []string{frontend.WorkerPinHeader, "x"}, 400, frontend.WorkerPinHeader},
		{"objective", "/v1/completions", `{"prompt":[1]}`, []string{frontend.ObjectiveHeader, "fast"}, 400, `X-Blockyard-Objective: want balanced or ttft or throughput, got "fast"`},
		{"unknown path", "/v1/load_lora_adapter", `{}`, nil, 404, "is not served"},
		{"WebSocket", "/v1/realtime", `{}`, nil, 501, "WebSocket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := b.post(c.path, c.body, c.headers...)
			if message, _ := errorOf(t, body); resp.StatusCode != c.status || !strings.Contains(message, c.message) {
				t.Errorf("status %d, message %q; want %d and %q", resp.StatusCode, message, c.status, c.message)
			}
		})
	}
	if got := s.got(); len(got) != 0 {
		t.Errorf("the worker got %q", got)
	}
	b.expectIdle()
}

// A body that is too large by its length is refused before it comes.
func TestLargeBodyIsNotAwaited(t *testing.T) {
	b := newBench(t, frontend.Options{MaxBody: 200}, newServer(t, 7, streams(chunk)))
	body, rest := io.Pipe()
	defer rest.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = 1 << 20 // more than the server would read to keep the connection
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", resp.StatusCode)
	}
}

// In mode direct a request names its worker in a header.
func TestDirectModeNeedsTheHeader(t *testing.T) {
	direct := routertest.Configured(func(c *config.Config) { c.RouterMode = config.ModeDirect })
	b := newBenchOn(t, router.Options{Config: direct}, frontend.Options{}, newServer(t, 7, streams(chunk)))
	resp, body := b.post("/v1/completions", prompt)
	if message, _ := errorOf(t, body); resp.StatusCode != 400 || !strings.Contains(message, frontend.WorkerPinHeader) {
		t.Errorf("without the header: status %d, message %q", resp.StatusCode, message)
	}
	if resp, body = b.post("/v1/completions", prompt, frontend.WorkerPinHeader, "7"); resp.StatusCode != 200 {
		t.Errorf("with the header: status %d, %s", resp.StatusCode, body)
	}
	b.expectIdle()
}

// Without a worker the answer is 503, with the seconds to wait.
func TestNoWorkers(t *testing.T) {
	b := newBench(t, frontend.Options{})
	resp, body := b.post("/v1/completions", prompt)
	if _, code := errorOf(t, body); resp.StatusCode != 503 || code != "no_workers" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, code %s, Retry-After %q", resp.StatusCode, code, resp.Header.Get("Retry-After"))
	}
}

// A worker that the router knows before the directory does gets no requests and refuses none.
func TestWorkerThatTheDirectoryLacksYet(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{}, s, newServer(t, 8, answers(200, `{}`)))
	b.directory.workers = b.directory.workers[:1]
	for i := range 12 {
		resp, body := b.post("/v1/completions", fmt.Sprintf(`{"prompt":[%d]}`, i))
		if resp.StatusCode != 200 || resp.Header.Get(frontend.WorkerHeader) != "7/0" {
			t.Fatalf("request %d: status %d from %q: %s", i, resp.StatusCode, resp.Header.Get(frontend.WorkerHeader), body)
		}
	}
	b.expectIdle()
	b.directory.workers = nil
	if resp, body := b.post("/v1/completions", prompt); resp.StatusCode != 503 || !strings.Contains(body, "its endpoint is not known") {
		t.Errorf("without servers: status %d: %s", resp.StatusCode, body)
	}
	b.expectIdle()
}

// A body that the door need not edit reaches the worker unchanged; credentials do not.
func TestForwarded(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{Pass: []string{"/v1/rerank"}}, s)
	for path, body := range map[string]string{
		"/v1/embeddings": `{ "input" : "text", "model":"m" }`,
		"/v1/rerank":     `anything`,
		"/tokenize":      `{"prompt":"text"}`,
	} {
		resp, _ := b.post(path, body, "Authorization", "Bearer client", "X-Trace", "t")
		got := s.got()
		if resp.StatusCode != 200 || got[len(got)-1] != body {
			t.Errorf("%s: status %d, the worker got %q, want %q", path, resp.StatusCode, got[len(got)-1], body)
		}
	}
	for _, h := range s.header {
		if h.Get("Authorization") != "" || h.Get("X-Trace") != "t" {
			t.Errorf("the worker got the headers %v", h)
		}
	}
	b.expectIdle()
}

// A request is booked for its adapter, and names the tokens that the engine will reuse.
func TestAdapterAndModels(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{}, s)
	if resp, body := b.post("/v1/completions", `{"model":"adapter","prompt":[1,2,3,4,5]}`); resp.StatusCode != 200 {
		t.Errorf("status %d: %s", resp.StatusCode, body)
	}
	resp, err := http.Get(b.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			MaxLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Data) != 1 || list.Data[0].ID != "m" || list.Data[0].MaxLen != 100 {
		t.Errorf("models %+v, %v", list, err)
	}
}

// TestNoEventWaitsForTheNext has a worker pause behind events that come together, the last
// of which the client does not get.
func TestNoEventWaitsForTheNext(t *testing.T) {
	seen := make(chan struct{})
	s := newServer(t, 1, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\ndata: %s\n\ndata: %s\n\n", chunk, lastChunk, usageOnly)
		w.(http.Flusher).Flush()
		select {
		case <-seen:
			fmt.Fprint(w, "data: [DONE]\n\n")
		case <-r.Context().Done():
		}
	})
	b := newBench(t, frontend.Options{}, s)
	resp, err := http.Post(b.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":[1,2,3],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, len("data: \n\n")*2+len(chunk)+len(lastChunk))
	if _, err := io.ReadFull(resp.Body, got); err != nil {
		t.Fatal(err)
	}
	close(seen)
	rest, err := io.ReadAll(resp.Body)
	if err != nil || string(got)+string(rest) != "data: "+chunk+"\n\ndata: "+lastChunk+"\n\ndata: [DONE]\n\n" {
		t.Errorf("%q and %q, %v", got, rest, err)
	}
}
