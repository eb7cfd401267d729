package frontend_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// Each request has one line in the access log: who asked for what, which worker served it, and what
// it cost. A refused request has its reason.
func TestAccessLog(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	b := newBench(t, frontend.Options{AccessLog: true, Log: zap.New(core), Keys: openKeys(t, [2]string{"a", `"tenant":"research","name":"ci"`})},
		newServer(t, 7, streams(chunk, lastChunk, usageOnly, "[DONE]")))
	b.post("/v1/completions", prompt, append(bearer("a"), "X-Request-Id", "mine")...)
	b.post("/v1/completions", `{"model":"other","prompt":[1]}`, bearer("a")...)
	b.expectIdle()
	waittest.Until(t, "two lines", func() bool { return logs.FilterMessage("request").Len() == 2 })
	lines := logs.FilterMessage("request").All()
	served, refused := lines[0].ContextMap(), lines[1].ContextMap()
	for name, want := range map[string]any{
		"request": "mine", "method": "POST", "path": "/v1/completions", "model": "m", "status": int64(200), "tenant": "research", "key": "ci",
		"worker": "7/0", "attempts": int64(1), "prompt_tokens": int64(9), "output_tokens": int64(2), "cached_predicted": int64(0), "cached_delivered": int64(4),
	} {
		if served[name] != want {
			t.Errorf("%s: %v (%T), want %v", name, served[name], served[name], want)
		}
	}
	if served["first_token"] == nil || served["error"] != nil || served["client"] == nil {
		t.Errorf("line of a served request: %v", served)
	}
	if refused["status"] != int64(404) || !strings.Contains(refused["error"].(string), "other") || refused["worker"] != nil {
		t.Errorf("line of a refused request: %v", refused)
	}
}

// Requests that reach no worker have a line too, with a bounded path.
func TestAccessLogOfRejectedRequests(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	b := newBench(t, frontend.Options{AccessLog: true, Log: zap.New(core)}, newServer(t, 7, streams(chunk, "[DONE]")))
	b.post("/"+strings.Repeat("long", 1000), "{}")
	b.post("/v1/realtime", "{}")
	b.post("/v1/completions", prompt, "Origin", "https://elsewhere.example")
	resp, err := http.Get(b.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	waittest.Until(t, "four lines", func() bool { return logs.FilterMessage("request").Len() == 4 })
	var got []string
	for _, e := range logs.FilterMessage("request").All() {
		m := e.ContextMap()
		got = append(got, fmt.Sprint(m["path"], " ", m["status"]))
	}
	want := []string{("/" + strings.Repeat("long", 1000))[:300] + " 404", "/v1/realtime 501", "/v1/completions 403", "/v1/models 200"}
	if !slices.Equal(got, want) {
		t.Errorf("lines %q, want %q", got, want)
	}
}

// broken is a source of tokens with a bug.
type broken struct{}

func (broken) Tokens(context.Context, string, *openai.Request) (tokens.Prompt, error) {
	panic("no tokens")
}

// A request that panics has its line, and the server gets the panic.
func TestAccessLogOfAPanic(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	routertest.OnBench(t, router.Options{}, func(rb *routertest.Bench) {
		rb.Send(rb.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
		d := &directory{served: map[string]workers.Served{"m": {Model: "m"}}}
		door, err := frontend.New(frontend.Options{Router: rb.Router, Workers: d, Tokens: broken{}, AccessLog: true, Log: zap.New(core)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if p := recover(); !strings.HasSuffix(fmt.Sprint(p), ": BUG: no tokens") {
				t.Errorf("panic %v, want that of the tokens", p)
			}
			lines := logs.FilterMessage("request").All()
			if len(lines) != 1 || lines[0].ContextMap()["status"] != int64(500) || lines[0].ContextMap()["error"] != "BUG: no tokens" {
				t.Errorf("lines %v", lines)
			}
			if n := door.Stats().Running; n != 0 {
				t.Errorf("%d requests are running", n)
			}
		}()
		door.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/completions", strings.NewReader(prompt)))
	})
}

// unread is the writer of a client that reads nothing: the other end of a pipe.
type unread struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (u unread) Write(b []byte) (int, error)         { return u.conn.Write(b) }
func (u unread) SetWriteDeadline(by time.Time) error { return u.conn.SetWriteDeadline(by) }
func (u unread) FlushError() error                   { return nil }

// A client that does not read its stream ends after a minute, and its booking with it.
func TestUnreadAnswerEnds(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(rb *routertest.Bench) {
		rb.Send(rb.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
		d := &directory{served: map[string]workers.Served{"": {Model: "m"}}, workers: []*workers.Worker{{ID: 1, URL: "http://a", State: workers.Ready, Ranks: 1}}}
		door, err := frontend.New(frontend.Options{Router: rb.Router, Workers: d, Tokens: prompts{}})
		if err != nil {
			t.Fatal(err)
		}
		stream := frontend.Through{Send: func(context.Context, *frontend.Decision) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
				Body: io.NopCloser(strings.NewReader("data: " + chunk + "\n\ndata: [DONE]\n\n"))}, nil
		}}
		client, server := net.Pipe()
		defer client.Close() //nolint:errcheck // nothing was sent
		begun := time.Now()
		req := httptest.NewRequestWithContext(frontend.WithThrough(t.Context(), &stream), "POST", "/v1/completions", strings.NewReader(`{"prompt":[1],"stream":true}`))
		door.Handler().ServeHTTP(unread{httptest.NewRecorder(), server}, req)
		if lasted := time.Since(begun); lasted < 30*time.Second || lasted > 90*time.Second {
			t.Errorf("the request ended after %s, want about a minute", lasted)
		}
		if n := rb.Router.Stats().Requests.Load.Requests; n != 0 {
			t.Errorf("%d requests are booked", n)
		}
		if got := d.outcomes(); len(got) != 1 || got[0] != workers.OutcomeClient {
			t.Errorf("outcomes %v, want one that is the client's", got)
		}
	})
}

// A request whose answer is not streamed shows no first token. Its prefill ends when the worker's
// events show the blocks of its prompt, long before its answer.
func TestPrefillOfAnAnswerThatIsNotStreamed(t *testing.T) {
	prefillWithoutStream(t, "")
}

// The prompt of a hybrid model is computed once the primary group has its blocks. The states serve
// no prefix of three blocks, and the engine has kept none.
func TestPrefillOfAHybridAnswerThatIsNotStreamed(t *testing.T) {
	groups, _ := kvevent.NewGroups(kvgroup.Groups{
		{Kind: kvgroup.State, BlockSize: 2 * sourcetest.BlockSize}, {Kind: kvgroup.Full, BlockSize: sourcetest.BlockSize},
	})
	prefillWithoutStream(t, groups)
}

func prefillWithoutStream(t *testing.T, groups kvevent.Groups) {
	t.Helper()
	routertest.OnBench(t, router.Options{}, func(rb *routertest.Bench) {
		p := rb.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		p.Meta.Card.Groups = groups
		rb.Send(p.Announce())
		d := &directory{served: map[string]workers.Served{"": {Model: "m"}}, workers: []*workers.Worker{{ID: 1, URL: "http://a", State: workers.Ready, Ranks: 1}}}
		door, err := frontend.New(frontend.Options{Router: rb.Router, Workers: d, Tokens: prompts{}})
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan struct{})
		whole := frontend.Through{Send: func(context.Context, *frontend.Decision) (*http.Response, error) {
			<-answered
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`))}, nil
		}}
		tokens := sourcetest.Tokens(1, 2, 3)
		ended := make(chan int)
		go func() {
			w := httptest.NewRecorder()
			body := strings.NewReader(`{"prompt":` + routertest.TokensJSON(tokens) + `}`)
			door.Handler().ServeHTTP(w, httptest.NewRequestWithContext(frontend.WithThrough(t.Context(), &whole), "POST", "/v1/completions", body))
			ended <- w.Code
		}()
		pending := func() int {
			time.Sleep(5 * time.Second)
			synctest.Wait()
			loads, err := rb.Model().Decide().GetPotentialLoads(&router.Request{Tokens: sourcetest.Tokens()})
			if err != nil || len(loads) != 1 || loads[0].Requests != 1 {
				t.Fatalf("loads %+v, %v; want one request", loads, err)
			}
			return loads[0].PrefillTokens
		}
		if got := pending(); got != len(tokens) {
			t.Errorf("%d tokens are being computed, want %d", got, len(tokens))
		}
		rb.Send(p.Store(kv.TierDevice, tokens))
		if got := pending(); got != 0 {
			t.Errorf("%d tokens are being computed after the events of the prompt's blocks, want none", got)
		}
		close(answered)
		if got := <-ended; got != http.StatusOK {
			t.Errorf("status %d", got)
		}
	})
}
