package frontend_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/workers"
)

const blockSize = 4

// server is a worker server whose answers a test chooses.
type server struct {
	*httptest.Server
	id kv.WorkerID

	mu     sync.Mutex
	bodies []string
	header []http.Header
	gone   chan struct{} // gets a value when a client leaves a request that waits
	answer http.HandlerFunc
}

func newServer(t testing.TB, id kv.WorkerID, answer http.HandlerFunc) *server {
	s := &server{id: id, answer: answer, gone: make(chan struct{}, 16)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("worker %d: %v", id, err)
		}
		s.mu.Lock()
		s.bodies, s.header = append(s.bodies, string(body)), append(s.header, r.Header.Clone())
		s.mu.Unlock()
		s.answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// got returns the bodies that the server got.
func (s *server) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

// streams answers with events, a comment before the first.
func streams(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		fmt.Fprint(w, ": ping\n\n")
		for _, e := range events {
			fmt.Fprintf(w, "data: %s\n\n", e)
			w.(http.Flusher).Flush()
		}
	}
}

// dies closes the connection after some events.
func dies(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for _, e := range events {
			fmt.Fprintf(w, "data: %s\n\n", e)
			w.(http.Flusher).Flush()
		}
		panic(http.ErrAbortHandler)
	}
}

// answers answers with a status and a body.
func answers(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

const (
	chunk     = `{"id":"c","choices":[{"index":0,"text":"a"}]}`
	lastChunk = `{"id":"c","choices":[{"index":0,"text":"b","finish_reason":"length"}]}`
	usageOnly = `{"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}`
)

// directory is a directory of fixed workers.
type directory struct {
	workers []*workers.Worker
	served  map[string]workers.Served

	mu    sync.Mutex
	ended []workers.Outcome
}

func (d *directory) Resolve(model string) (workers.Served, error) {
	s, ok := d.served[model]
	if !ok {
		return s, fmt.Errorf("model: %q: %w: workers serve [m]", model, workers.ErrUnknownModel)
	}
	return s, nil
}

func (d *directory) Worker(id kv.WorkerID) (*workers.Worker, bool) {
	at := slices.IndexFunc(d.workers, func(w *workers.Worker) bool { return w.ID == id })
	if at < 0 {
		return nil, false
	}
	return d.workers[at], true
}

func (d *directory) Workers() []*workers.Worker         { return d.workers }
func (d *directory) Models() []workers.Model            { return []workers.Model{{Name: "m", MaxLen: 100}} }
func (d *directory) NoteCachedTokens(kv.WorkerID, bool) {}
func (d *directory) Begin(kv.WorkerID)                  {}

// AllowedFor is nil when all workers may get whole requests, as that of workers.Directory.
func (d *directory) AllowedFor(string) map[kv.WorkerID]struct{} {
	set := d.ready(func(r workers.Role) bool { return r != workers.RolePrefill })
	if len(set) == len(d.workers) {
		return nil
	}
	return set
}

func (d *directory) PrefillFor(string) map[kv.WorkerID]struct{} {
	return d.ready(func(r workers.Role) bool { return r == workers.RolePrefill })
}

// ready returns the ready workers with a role.
func (d *directory) ready(has func(workers.Role) bool) map[kv.WorkerID]struct{} {
	set := make(map[kv.WorkerID]struct{})
	for _, w := range d.workers {
		if has(w.Role) && w.State == workers.Ready {
			set[w.ID] = struct{}{}
		}
	}
	return set
}

func (d *directory) Done(_ kv.WorkerID, o workers.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(d.ended, o)
}

func (d *directory) outcomes() []workers.Outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ended)
}

// prompts knows the tokens of prompts that have them.
type prompts struct{}

func (prompts) Tokens(_ context.Context, _ string, r *openai.Request) (tokens.Prompt, error) {
	return tokens.Prompt{Tokens: r.Tokens, Exact: r.Tokens != nil}, nil
}

// bench is a door in front of servers, with a real router.
type bench struct {
	t         testing.TB
	router    *router.Router
	directory *directory
	door      *frontend.Door
	url       string
}

// newBench serves a door in front of servers that serve model "m".
func newBench(t testing.TB, o frontend.Options, servers ...*server) *bench {
	t.Helper()
	return newBenchOn(t, router.Options{}, o, servers...)
}

// newBenchOn is newBench with options of the router.
func newBenchOn(t testing.TB, ro router.Options, o frontend.Options, servers ...*server) *bench {
	t.Helper()
	reg, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reg.Close() })
	b := &bench{t: t, router: routertest.RunOn(t, ro, reg), directory: &directory{served: map[string]workers.Served{
		"m": {Model: "m", MaxLen: 100}, "": {Model: "m", MaxLen: 100}, "adapter": {Model: "m", LoRA: "adapter"},
	}}}
	for _, s := range servers {
		g := registry.Registration{WorkerID: uint64(s.id), Model: "m", BlockSize: blockSize, Endpoint: s.URL}
		if err := reg.Register(&g, time.Hour); err != nil {
			t.Fatal(err)
		}
		reg.Announce(uint64(s.id))
		b.directory.workers = append(b.directory.workers, &workers.Worker{
			ID: s.id, URL: s.URL, Ranks: 1, State: workers.Ready, Facts: workers.Facts{BlockSize: blockSize},
		})
	}
	for len(b.router.Workers()) < len(servers) {
		runtime.Gosched()
	}
	o.Router, o.Workers = b.router, b.directory
	if o.Tokens == nil {
		o.Tokens = prompts{}
	}
	door, err := frontend.New(o)
	if err != nil {
		t.Fatal(err)
	}
	b.door = door
	door.Measure(b.router.Metrics())
	front := httptest.NewServer(door.Handler())
	t.Cleanup(front.Close)
	b.url = front.URL
	return b
}

// post sends a body and returns the answer.
func (b *bench) post(path, body string, headers ...string) (*http.Response, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatalf("%s: %v", path, err)
	}
	return resp, string(got)
}

// expectIdle checks that no request is booked.
func (b *bench) expectIdle() {
	b.t.Helper()
	waittest.Pass(b.t, func() string {
		if n := b.router.Stats().Requests.Load.Requests; n > 0 {
			return fmt.Sprintf("%d requests are still booked", n)
		}
		return ""
	})
}

// readUntil streams an answer and returns after a line of it, or when ctx ends. The
// connection stays open until ctx ends.
func (b *bench) readUntil(ctx context.Context, line string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/v1/completions", strings.NewReader(prompt))
	if err != nil {
		b.t.Error(err)
		return
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			b.t.Error(err)
		}
		return
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if lines.Text() == line {
			return
		}
	}
}

// errorOf returns the error of an answer in OpenAI's shape.
func errorOf(t *testing.T, body string) (message, code string) {
	t.Helper()
	var e struct {
		Error struct {
			Message string `json:"message"`
			Code    any    `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Message == "" {
		t.Fatalf("answer %q is not an error of OpenAI's shape: %v", body, err)
	}
	return e.Error.Message, fmt.Sprint(e.Error.Code)
}
