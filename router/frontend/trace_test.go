package frontend_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/frontend/spans"
	"github.com/blockyard-ai/blockyard/router/frontend/spans/spanstest"
)

const (
	clientTrace  = "0af7651916cd43dd8448eb211c80319c"
	clientParent = "00-" + clientTrace + "-b7ad6b7169203331-01"
	clientState  = "vendor=opaque"
)

// headers returns the headers of the last request that a server got.
func (s *server) headers() http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.header[len(s.header)-1]
}

// A request that is retried has a span for each part, in the client's trace. The worker gets the
// span of its attempt as parent, and the client's tracestate.
func TestSpans(t *testing.T) {
	c := spanstest.New()
	defer c.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	tracer, err := spans.Open(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	fail := func(w http.ResponseWriter, r *http.Request) {
		failed := false
		once.Do(func() { failed = true })
		if failed {
			dies()(w, r)
		}
		streams(chunk, lastChunk, usageOnly, "[DONE]")(w, r)
	}
	one, two := newServer(t, 1, fail), newServer(t, 2, fail)
	b := newBench(t, frontend.Options{Tracer: tracer, Admission: admission.Limits{Running: 4}}, one, two)
	resp, body := b.post("/v1/completions", prompt, "traceparent", clientParent, "tracestate", clientState)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	dead, alive := one, two
	if resp.Header.Get(frontend.WorkerHeader) == "1/0" {
		dead, alive = two, one
	}
	b.expectIdle()
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	all := c.Spans()
	at := slices.IndexFunc(all, func(s spanstest.Span) bool {
		return s.Name == "POST /v1/completions" && s.Attributes["blockyard.attempts"] == "2"
	})
	if at < 0 {
		t.Fatalf("no span of a request with two attempts: %+v", all)
	}
	request := all[at]
	for name, want := range map[string]string{
		"http.request.method": "POST", "url.path": "/v1/completions", "http.response.status_code": "200", "gen_ai.request.model": "m",
		"blockyard.worker": resp.Header.Get(frontend.WorkerHeader), "gen_ai.usage.output_tokens": "2", "blockyard.cached_tokens.delivered": "4",
	} {
		if got := request.Attributes[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if request.Trace != clientTrace || request.Parent != "b7ad6b7169203331" || request.Kind != 2 || request.Failed {
		t.Errorf("the span of the request is %+v", request)
	}
	parts, upstream := partsOf(all, &request)
	if want := []string{"admission", "decision", "decision", "tokens", "upstream", "upstream"}; !slices.Equal(parts, want) {
		t.Errorf("parts %v, want %v", parts, want)
	}
	for i, s := range []*server{dead, alive} {
		span := upstream[s.URL]
		if span.Failed != (i == 0) || span.Kind != 3 {
			t.Errorf("the call of %s is %+v", s.URL, span)
		}
		firsts, _ := partsOf(all, &span)
		if len(firsts) != i {
			t.Errorf("the call of %s has the parts %v, want the first token of the second", s.URL, firsts)
		}
		if h := s.headers(); h.Get("Traceparent") != "00-"+clientTrace+"-"+span.ID+"-01" || h.Get("Tracestate") != clientState {
			t.Errorf("%s got traceparent %q, tracestate %q; want the span %s", s.URL, h.Get("Traceparent"), h.Get("Tracestate"), span.ID)
		}
	}
}

// partsOf returns the sorted names of the spans in a span, and those with a URL by it.
func partsOf(all []spanstest.Span, of *spanstest.Span) (names []string, byURL map[string]spanstest.Span) {
	byURL = make(map[string]spanstest.Span)
	for _, s := range all {
		if s.Parent != of.ID {
			continue
		}
		names = append(names, s.Name)
		if url := s.Attributes["url.full"]; url != "" {
			byURL[url] = s
		}
	}
	slices.Sort(names)
	return names, byURL
}

// A refused request has a failed span without calls.
func TestSpanOfARefusal(t *testing.T) {
	c := spanstest.New()
	defer c.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	tracer, err := spans.Open(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, frontend.Options{Tracer: tracer}, newServer(t, 1, streams(chunk)))
	b.post("/v1/completions", `{"model":"other","prompt":[1]}`)
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	all := c.Spans()
	if len(all) != 1 || !all[0].Failed || all[0].Parent != "" || all[0].Attributes["http.response.status_code"] != "404" {
		t.Errorf("spans %+v, want one that failed with 404", all)
	}
}

// Without tracing the client's own context reaches the worker.
func TestTraceContextPasses(t *testing.T) {
	s := newServer(t, 1, streams(chunk, "[DONE]"))
	b := newBench(t, frontend.Options{}, s)
	b.post("/v1/completions", prompt, "traceparent", clientParent, "tracestate", clientState, "baggage", "a=b")
	h := s.headers()
	if got := strings.Join([]string{h.Get("Traceparent"), h.Get("Tracestate"), h.Get("Baggage")}, " "); got != clientParent+" "+clientState+" a=b" {
		t.Errorf("the worker got %q", got)
	}
}
