package frontend_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/admission"
	"github.com/blockyard-ai/blockyard/router/routertest"
)

// holds answers when it is told to. It counts the requests that it has.
type holds struct {
	running, most, all atomic.Int32
	end                chan struct{}
}

func (h *holds) answer(w http.ResponseWriter, r *http.Request) {
	h.all.Add(1)
	n := h.running.Add(1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
	<-h.end
	h.running.Add(-1)
	answers(200, `{}`)(w, r)
}

// background sends a request with a key and sends the status of its answer.
func (b *bench) background(key string) <-chan int {
	status := make(chan int, 1)
	go func() {
		resp, _ := b.post("/v1/completions", `{"prompt":[1]}`, bearer(key)...)
		status <- resp.StatusCode
	}()
	return status
}

func await(t *testing.T, n *atomic.Int32, want int32) {
	t.Helper()
	waittest.Pass(t, func() string {
		if got := n.Load(); got < want {
			return fmt.Sprintf("%d requests, want %d", got, want)
		}
		return ""
	})
}

// At most as many requests are at workers as may be. The queue of a tenant is full before
// that of others, and the answer says when to try again.
func TestAdmission(t *testing.T) {
	h := &holds{end: make(chan struct{})}
	b := newBench(t, frontend.Options{
		Admission: admission.Limits{Running: 2, Waiting: 8, TenantWaiting: 1},
		Keys:      openKeys(t, [2]string{"a", `"tenant":"a"`}, [2]string{"b", `"tenant":"b"`}),
	}, newServer(t, 7, h.answer))
	statuses := []<-chan int{b.background("a"), b.background("a")}
	await(t, &h.all, 2)
	// One of these two waits, and the other one finds the queue of its tenant full.
	one, two := b.background("a"), b.background("a")
	select {
	case got := <-one:
		statuses, one = append(statuses, two), nil
		if got != 429 {
			t.Errorf("status %d, want 429", got)
		}
	case got := <-two:
		statuses, two = append(statuses, one), nil
		if got != 429 {
			t.Errorf("status %d, want 429", got)
		}
	}
	resp, body := b.post("/v1/completions", `{"prompt":[1]}`, bearer("a")...)
	if _, code := errorOf(t, body); resp.StatusCode != 429 || code != "tenant_queue_full" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, code %s", resp.StatusCode, code)
	}
	statuses = append(statuses, b.background("b"))
	close(h.end)
	for i, s := range statuses {
		if got := <-s; got != 200 {
			t.Errorf("request %d: status %d, want 200", i, got)
		}
	}
	if got := h.most.Load(); got != 2 {
		t.Errorf("%d requests were at the worker together, want 2", got)
	}
	b.expectIdle()
}

// The priority of a body orders waiting requests, lower ones first: at the door those of a tenant,
// and in the router's queue those of all clients when there are no keys.
func TestPriority(t *testing.T) {
	few := 1e-9 // of ten million tokens
	for name, c := range map[string]struct {
		options frontend.Options
		router  router.Options
		waiting func(b *bench) int
	}{
		"door": {
			options: frontend.Options{Admission: admission.Limits{Running: 1}, Keys: openKeys(t, [2]string{"a", `"tenant":"a"`})},
			waiting: func(b *bench) int {
				return strings.Count(metricsOf(t, b.router), "blockyard_frontend_admission_waiting{model=\"m\"} 2\n")
			},
		},
		"router": {
			router:  router.Options{Config: routertest.Configured(func(c *config.Config) { c.RouterQueueThreshold = &few })},
			waiting: func(b *bench) int { return b.router.Stats().Requests.Queue.Pending / 2 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &holds{end: make(chan struct{})}
			s := newServer(t, 7, h.answer)
			b := newBenchOn(t, c.router, c.options, s)
			send := func(body string) <-chan int {
				status := make(chan int, 1)
				go func() {
					resp, _ := b.post("/v1/completions", body, bearer("a")...)
					status <- resp.StatusCode
				}()
				return status
			}
			statuses := []<-chan int{send(`{"prompt":[1]}`)}
			await(t, &h.all, 1)
			statuses = append(statuses, send(`{"prompt":[2],"priority":5}`), send(`{"prompt":[3],"priority":-5000}`))
			for c.waiting(b) == 0 {
				runtime.Gosched()
			}
			close(h.end)
			for i, s := range statuses {
				if got := <-s; got != 200 {
					t.Errorf("request %d: status %d, want 200", i, got)
				}
			}
			if got := s.got(); len(got) != 3 || !strings.Contains(got[1], "[3]") {
				t.Errorf("the worker got %q, want the lower priority before the higher", got)
			}
			b.expectIdle()
		})
	}
}

// A tenant and a client address have no more requests in progress than they may have.
func TestRequestLimits(t *testing.T) {
	for name, o := range map[string]frontend.Options{
		"tenant":  {Keys: openKeys(t, [2]string{"a", `"tenant":"a","requests":1`})},
		"address": {MaxClientRequests: 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := &holds{end: make(chan struct{})}
			b := newBench(t, o, newServer(t, 7, h.answer))
			held := b.background("a")
			await(t, &h.all, 1)
			resp, body := b.post("/v1/completions", `{"prompt":[1]}`, bearer("a")...)
			if message, code := errorOf(t, body); resp.StatusCode != 429 || code != "too_many_requests" || !strings.Contains(message, name) || resp.Header.Get("Retry-After") == "" {
				t.Errorf("status %d, code %s, %q", resp.StatusCode, code, message)
			}
			close(h.end)
			if got := <-held; got != 200 {
				t.Errorf("the first request: status %d", got)
			}
			if resp, _ := b.post("/v1/completions", `{"prompt":[1]}`, bearer("a")...); resp.StatusCode != 200 {
				t.Errorf("after the first request: status %d", resp.StatusCode)
			}
		})
	}
}

// Headers of more than 64 KiB are refused, and the door serves on.
func TestLargeHeaders(t *testing.T) {
	s := newServer(t, 7, answers(200, `{}`))
	b := newBench(t, frontend.Options{}, s)
	url := serveDoor(t, b)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]int{strings.Repeat("a", 1<<20): 431, "a": 200} {
		req.Header.Set("X-Large", header)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want || err != nil {
			t.Errorf("%d bytes of headers: status %d, want %d; %v", len(header), resp.StatusCode, want, err)
		}
		if want == 431 {
			if _, code := errorOf(t, string(body)); code != "headers_too_large" {
				t.Errorf("code %s", code)
			}
		}
	}
}

// serveDoor serves the door of a bench with the limits of Serve, and returns the URL.
func serveDoor(t *testing.T, b *bench) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, b, l)
}

// serveOn is serveDoor with a listener.
func serveOn(t *testing.T, b *bench, l net.Listener) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.door.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// The bodies of requests in progress have a bound. Small ones always get through, and the
// memory comes back.
func TestBodies(t *testing.T) {
	h := &holds{end: make(chan struct{})}
	b := newBench(t, frontend.Options{MaxBodies: 100 << 10}, newServer(t, 7, h.answer))
	large := `{"prompt":[1` + strings.Repeat(" ", 60<<10) + `]}`
	held := make(chan int, 1)
	go func() {
		resp, _ := b.post("/v1/completions", large)
		held <- resp.StatusCode
	}()
	await(t, &h.all, 1)
	resp, body := b.post("/v1/completions", large)
	if _, code := errorOf(t, body); resp.StatusCode != 503 || code != "too_many_requests" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, code %s", resp.StatusCode, code)
	}
	small := b.background("")
	await(t, &h.all, 2)
	close(h.end)
	if got := <-held; got != 200 {
		t.Errorf("the first body: status %d", got)
	}
	if got := <-small; got != 200 {
		t.Errorf("a small body: status %d", got)
	}
	if resp, _ := b.post("/v1/completions", large); resp.StatusCode != 200 {
		t.Errorf("after the first body: status %d", resp.StatusCode)
	}
}

// piped is the writer of a client whose connection is one end of a pipe.
type piped struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

// SetReadDeadline is what http.ResponseController calls.
func (p piped) SetReadDeadline(by time.Time) error { return p.conn.SetReadDeadline(by) }

// A client that sends a byte a second of its body loses its place after seconds, not minutes.
func TestSlowBodyLosesItsPlace(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(rb *routertest.Bench) {
		door, err := frontend.New(frontend.Options{Router: rb.Router, Workers: &directory{}, Tokens: prompts{}, MaxRequests: 1})
		if err != nil {
			t.Fatal(err)
		}
		client, server := net.Pipe()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for {
				if _, err := client.Write([]byte(" ")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		slow, begun := httptest.NewRecorder(), time.Now()
		ended := make(chan time.Duration, 1)
		go func() {
			door.Handler().ServeHTTP(piped{slow, server}, httptest.NewRequest("POST", "/v1/completions", server))
			ended <- time.Since(begun)
		}()
		ask := func() int {
			w := httptest.NewRecorder()
			door.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/v1/completions", strings.NewReader(`{"prompt":[1]}`)))
			return w.Code
		}
		synctest.Wait()
		if got := ask(); got != 503 {
			t.Errorf("beside the slow client: status %d, want 503", got)
		}
		if lasted := <-ended; slow.Code != http.StatusRequestTimeout || lasted > bodies.Grace+time.Second {
			t.Errorf("the slow client: status %d after %s; want 408 after %s", slow.Code, lasted, bodies.Grace)
		}
		if got := ask(); got != 404 { // no worker serves the model
			t.Errorf("after the slow client: status %d, want 404", got)
		}
		_ = server.Close()
		<-sent
	})
}

// At its end the door closes the connections to workers that it kept for later requests: the
// next request opens another one.
func TestEndClosesIdleConnections(t *testing.T) {
	var opened atomic.Int32
	worker := httptest.NewUnstartedServer(answers(200, `{}`))
	worker.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	worker.Start()
	defer worker.Close()
	b := newBench(t, frontend.Options{}, &server{Server: worker, id: 7})
	ask := func() {
		if resp, _ := b.post("/v1/completions", `{"prompt":[1]}`); resp.StatusCode != http.StatusOK {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	ask()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	if err := b.door.Serve(ended, l); err != nil {
		t.Error(err)
	}
	if ask(); opened.Load() != 2 {
		t.Errorf("%d connections to the worker were opened, want 2", opened.Load())
	}
}
