package tokens_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
)

// worker answers as vLLM 0.32 does. A token is a byte of the text, or of the messages.
type worker struct {
	*httptest.Server
	render   bool // started with --enable-scale-out
	models   []string
	fail     atomic.Int32 // status of every answer
	answer   atomic.Value // string: the whole answer
	gate     chan struct{}
	open     atomic.Int32 // calls under way
	peak     atomic.Int32 // most calls at one time
	mu       sync.Mutex
	requests []string // path and body
}

func newWorker(t *testing.T, render bool) *worker {
	w := &worker{render: render, models: []string{"m", "adapter"}}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

// hold makes calls wait until the returned function is called.
func (w *worker) hold() func() {
	w.gate = make(chan struct{})
	return sync.OnceFunc(func() { close(w.gate) })
}

func (w *worker) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.requests)
}

func (w *worker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if n := w.open.Add(1); n > w.peak.Load() {
		w.peak.Store(n)
	}
	defer w.open.Add(-1)
	raw, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		rw.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	w.mu.Lock()
	w.requests = append(w.requests, r.URL.Path+" "+string(raw))
	w.mu.Unlock()
	if w.gate != nil {
		select {
		case <-w.gate:
		case <-r.Context().Done():
			return
		}
	}
	if status := w.fail.Load(); status != 0 {
		refuse(rw, int(status), "InternalServerError", "made to fail")
		return
	}
	if answer, ok := w.answer.Load().(string); ok {
		io.WriteString(rw, answer)
		return
	}
	var body struct {
		Model    string
		Prompt   string
		Messages json.RawMessage
		System   string
	}
	if json.Unmarshal(raw, &body) != nil {
		refuse(rw, 400, "BadRequestError", "no JSON")
		return
	}
	text := body.Prompt + body.System + string(body.Messages)
	switch {
	case strings.HasSuffix(r.URL.Path, "/render") && !w.render:
		refuse(rw, 403, "PermissionDeniedError", "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.")
	case !slices.Contains(w.models, body.Model):
		refuse(rw, 404, "NotFoundError", "The model `"+body.Model+"` does not exist.")
	case strings.Contains(text, "too long"):
		refuse(rw, 400, "BadRequestError", "This model's maximum context length is 4096 tokens.")
	case r.URL.Path == "/tokenize":
		reply(rw, map[string]any{"count": len(text), "max_model_len": 4096, "tokens": ids(text), "token_strs": nil})
	case r.URL.Path == "/v1/completions/render":
		reply(rw, []any{rendered(text)})
	case strings.HasSuffix(r.URL.Path, "/render"):
		reply(rw, rendered(text))
	default:
		rw.WriteHeader(404)
		io.WriteString(rw, `{"detail":"Not Found"}`)
	}
}

func rendered(text string) map[string]any {
	return map[string]any{"request_id": "x", "token_ids": ids(text), "token_offsets": nil, "features": nil, "sampling_params": map[string]any{"n": 1}, "stream": false}
}

func ids(text string) []uint32 {
	out := make([]uint32, len(text))
	for i := range len(text) {
		out[i] = uint32(text[i])
	}
	return out
}

func refuse(rw http.ResponseWriter, status int, kind, message string) {
	rw.WriteHeader(status)
	json.NewEncoder(rw).Encode(map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": status}})
}

func reply(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	json.NewEncoder(rw).Encode(v)
}

// servers is the list that a Source asks.
type servers []tokens.Server

func (s servers) Tokenizers(string) []tokens.Server { return s }

func workers(ws ...*worker) servers {
	var list servers
	for _, w := range ws {
		list = append(list, tokens.Server{URL: w.URL, Render: w.render, Authorization: "Bearer k"})
	}
	return list
}

func open(t *testing.T, o tokens.Options) *tokens.Source {
	s := tokens.New(o)
	t.Cleanup(s.Close)
	return s
}

func parse(t *testing.T, route openai.Route, body string) *openai.Request {
	t.Helper()
	r, err := openai.Parse(route, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ask(t *testing.T, s *tokens.Source, model string, route openai.Route, body string) tokens.Prompt {
	t.Helper()
	p, err := s.Tokens(t.Context(), model, parse(t, route, body))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// waitFor waits for a condition that other goroutines bring about.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	waittest.Until(t, "the condition", done)
}
