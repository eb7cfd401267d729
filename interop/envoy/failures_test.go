package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// A worker that fails before it answers is replaced by the next endpoint of the decision.
// The booking moves to that worker, and ends once.
func TestEnvoyRetriesAtTheFallback(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		reset  bool
	}{"no answer": {reset: true}, "503": {status: 503}} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.startEnvoy(documented(t, complete))
			tokens := prompt(1, 64)
			b.workers[0].compute(t, tokens)
			b.known(tokens)
			if _, at := b.dryRun(tokens); at != b.workers[0].url {
				t.Fatalf("the router chooses %s, want the worker with the blocks, %s", at, b.workers[0].url)
			}
			b.workers[0].fail(c.status, c.reset)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			resp := b.send(ctx, "/v1/completions", completion(tokens, `"stream":true`, `"user":"hold"`))
			defer resp.Body.Close() //nolint:errcheck // the stream does not end
			if resp.StatusCode != http.StatusOK || len(b.workers[1].requests()) != 1 {
				t.Fatalf("status %d, %d requests at the fallback; want 200, 1", resp.StatusCode, len(b.workers[1].requests()))
			}
			if got := resp.Header.Get("X-Blockyard-Worker"); got != "" {
				t.Errorf("the answer names the worker %s of the first decision", got)
			}
			b.until("the booking is at the fallback", func() (bool, error) {
				return b.loads()[b.workers[1].url] > b.loads()[b.workers[0].url], nil
			})
			leave()
			b.idle()
		})
	}
}

// loads returns the blocks in use by the URL of the worker.
func (b *bed) loads() map[string]int {
	b.t.Helper()
	var known []struct {
		Worker   uint64 `json:"worker_id"`
		Endpoint string
	}
	if err := b.http.Get(b.t.Context(), "/v1/workers", &known); err != nil {
		b.t.Fatal(err)
	}
	var a struct {
		Loads []struct {
			Worker uint64 `json:"worker_id"`
			Blocks int    `json:"potential_decode_blocks"`
		}
	}
	b.route("potential_loads", prompt(77, 16), &a)
	out := make(map[string]int)
	for _, l := range a.Loads {
		for _, w := range known {
			if w.Worker == l.Worker {
				out[w.Endpoint] = l.Blocks
			}
		}
	}
	return out
}

// Refusals reach the client with the door's status, in OpenAI's shape: limits, a queue that
// is full, and bodies that make no sense. A request that waits is served when there is room.
func TestEnvoyRefusals(t *testing.T) {
	b := newBed(t, "--max-running=1", "--max-waiting=4", "--max-requests=3")
	b.startEnvoy(documented(t, complete))
	for body, want := range map[string]string{
		`{"model":`:                        "400 400",
		`{"model":"other","prompt":[1,2]}`: "404 model_not_found",
	} {
		a := b.ask(body)
		if got := fmt.Sprint(a.status, " ", a.errorCode(t)); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	held := b.send(ctx, "/v1/completions", completion(prompt(1, 64), `"stream":true`, `"user":"hold"`))
	defer held.Body.Close() //nolint:errcheck // the stream does not end
	waited := make(chan answer, 1)
	go func() { waited <- b.ask(completion(prompt(2, 64))) }()
	b.until("a request waits", func() (bool, error) { return b.metric("blockyard_frontend_admission_waiting") == 1, nil })
	b.refused(429, "tenant_queue_full")
	second, end := context.WithCancel(t.Context())
	defer end()
	third := make(chan struct{})
	go func() {
		defer close(third)
		r, err := http.NewRequestWithContext(second, http.MethodPost, b.url+"/v1/completions", &slowBody{ctx: second})
		if err != nil {
			t.Error(err)
			return
		}
		if resp, err := b.client.Do(r); err == nil {
			t.Errorf("half a request was answered with %d", resp.StatusCode)
			_ = resp.Body.Close()
		}
	}()
	b.until("three requests are in progress", func() (bool, error) { return b.metric("blockyard_frontend_requests_running") == 3, nil })
	b.refused(503, "too_many_requests")
	end()
	<-third
	leave()
	if a := <-waited; a.status != http.StatusOK {
		t.Errorf("the waiting request got %d: %s", a.status, a.body)
	}
	b.idle()
}

// slowBody is a body whose end does not come before the end of ctx.
type slowBody struct {
	ctx  context.Context
	sent bool
}

// Read implements io.Reader.
func (s *slowBody) Read(p []byte) (int, error) {
	if !s.sent {
		s.sent = true
		return copy(p, `{"model":"stub",`), nil
	}
	<-s.ctx.Done()
	return 0, context.Cause(s.ctx)
}

// refused checks the refusal of a request that is all right.
func (b *bed) refused(status int, code string) {
	b.t.Helper()
	a := b.ask(completion(prompt(3, 64)))
	if a.status != status || a.errorCode(b.t) != code || a.headers.Get("Retry-After") == "" {
		b.t.Errorf("status %d, headers %v, body %s; want %d, Retry-After, %s", a.status, a.headers, a.body, status, code)
	}
}

// Without the router, requests end with the configured status, at once. A stream that is
// open then is cut off. A new router serves.
func TestEnvoyWithoutTheRouter(t *testing.T) {
	b := newBed(t)
	b.startEnvoy(documented(t, complete))
	resp := b.send(t.Context(), "/v1/completions", completion(prompt(1, 64), `"stream":true`, `"user":"hold"`))
	defer resp.Body.Close() //nolint:errcheck // the stream is broken
	b.router.Kill()
	piece := make([]byte, 64<<10)
	var err error
	for err == nil {
		_, err = resp.Body.Read(piece)
	}
	if !strings.Contains(err.Error(), "EOF") {
		t.Errorf("the open stream ended with %v, want that it is cut off", err)
	}
	if a := b.ask(completion(prompt(2, 64))); a.status != http.StatusServiceUnavailable {
		t.Errorf("without the router: status %d, %s; want 503", a.status, a.body)
	}
	b.startRouter(b.extProc)
	b.until("a new router serves", func() (bool, error) { return b.ask(completion(prompt(2, 64))).status == http.StatusOK, nil })
}

// With the modes for requests without a router, Envoy's own policy spreads the requests then.
// Requests that wait at the router before are not cut off.
func TestEnvoyFailsOpen(t *testing.T) {
	b := newBed(t, "--max-running=1")
	b.startEnvoy(buffered(t))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	held := b.send(ctx, "/v1/completions", completion(prompt(1, 64), `"stream":true`, `"user":"hold"`))
	defer held.Body.Close()               //nolint:errcheck // the stream does not end
	const filter = 300 * time.Millisecond // longer than Envoy's default time for a message
	freed := time.AfterFunc(filter, leave)
	defer freed.Stop()
	if a := b.ask(completion(prompt(2, 64))); a.status != http.StatusOK {
		t.Errorf("the waiting request got %d: %s", a.status, a.body)
	}
	b.idle()
	before := make(map[string]int)
	for _, w := range b.workers {
		before[w.url] = len(w.requests())
	}
	b.router.Kill()
	for i := range 4 {
		if a := b.ask(completion(prompt(i, 64))); a.status != http.StatusOK {
			t.Errorf("without the router: status %d: %s", a.status, a.body)
		}
	}
	for _, w := range b.workers {
		if len(w.requests()) == before[w.url] {
			t.Errorf("worker %s got no request without the router", w.url)
		}
	}
}

// A body beyond the sizes of messages and of Envoy's default buffers reaches the worker whole.
func TestEnvoyLargeBody(t *testing.T) {
	for name, configuration := range map[string]string{"duplex": documented(t, complete), "buffered": buffered(t)} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.startEnvoy(configuration)
			body := completion(prompt(1, 64), `"stream":true`, `"metadata":{"note":"`+strings.Repeat("x", 3<<20)+`"}`)
			checkStream(t, b.ask(body), 2, false)
			got := slices.Concat(b.workers[0].requests(), b.workers[1].requests())
			if len(got) != 1 {
				t.Fatalf("%d requests came to workers, want 1", len(got))
			}
			checkUsage(t, got[0])
			if !json.Valid([]byte(got[0].body)) || len(got[0].body) < len(body) {
				t.Errorf("the worker got %d bytes, the client sent %d", len(got[0].body), len(body))
			}
			b.idle()
		})
	}
}

// An ORIGINAL_DST cluster forwards to the endpoint of the decision. It takes no list of endpoints.
func TestEnvoyOriginalDestination(t *testing.T) {
	before, _, found := strings.Cut(documented(t, complete), "    - name: workers\n")
	if !found {
		t.Fatal("docs/envoy.md: the configuration has no cluster workers")
	}
	b := newBed(t, "--no-ext-proc-fallbacks")
	b.startEnvoy(before + documented(t, destination))
	for i := range 4 {
		w := b.workers[i%2]
		w.compute(t, prompt(i, 64))
		b.known(prompt(i, 64))
		before := len(w.requests())
		if a := b.ask(completion(prompt(i, 64))); a.status != http.StatusOK || len(w.requests()) != before+1 {
			t.Errorf("status %d, %d new requests at the worker with the blocks: %s; want 200, 1", a.status, len(w.requests())-before, a.body)
		}
	}
	b.idle()
	b.router.Kill()
	b.startRouter(b.extProc)
	b.until("Envoy refuses two endpoints", func() (bool, error) {
		a := b.ask(completion(prompt(2, 64)))
		return a.status == http.StatusServiceUnavailable && strings.Contains(a.body, "no healthy upstream"), nil
	})
	b.idle()
}
