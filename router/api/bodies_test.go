package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// slowBody gives a part of its body and then waits until it is let go.
type slowBody struct {
	io.Reader
	read, letGo chan struct{}
}

func (s *slowBody) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if n == 0 && errors.Is(err, io.EOF) {
		close(s.read)
		<-s.letGo
	}
	return n, err
}

// Bodies that are being read leave only so much room for others, whatever the method and
// however they come; small ones always get through, and all room comes back.
func TestBodiesAreBounded(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		a := New(b.Router, Options{})
		a.service.bodies = bodies.New(190<<10, 300<<10, &b.Router.Metrics().API.Bodies)
		s, h := a.service, a.Handler()
		large := func(method string, n int) string {
			return `{"method":"` + method + `","tokens":[1` + strings.Repeat(" ", n) + `]}`
		}
		first := &slowBody{strings.NewReader(large("overlap", 80<<10)), make(chan struct{}), make(chan struct{})}
		answered := make(chan reply)
		go func() { answered <- s.route(b.T.Context(), first, caller{}) }()
		<-first.read
		for _, method := range []string{"new", "overlap", "potential_loads"} {
			if r, got := b.Route(h, "", large(method, 80<<10)); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got, errBusy.Error()) {
				t.Errorf("%s beside a large body: %d %.200s", method, r.StatusCode, got)
			}
			if r, got := b.Route(h, "", large(method, bodies.Free-200)); r.StatusCode != http.StatusOK {
				t.Errorf("a small %s beside a large body: %d %.200s", method, r.StatusCode, got)
			}
		}
		close(first.letGo)
		if out := <-answered; out.status != http.StatusOK {
			t.Errorf("the first: %+v", out)
		}
		if r, got := b.Route(h, "", large("overlap", 110<<10)); r.StatusCode != http.StatusOK {
			t.Errorf("after the first, as much as there is room for: %d %.200s", r.StatusCode, got)
		}
		if r, _ := b.Route(h, "", large("overlap", 140<<10)); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("more than there is room for: %d", r.StatusCode)
		}
		if left := a.service.bodies.Usage(); left != (bodies.Usage{}) {
			t.Errorf("left when nothing is at hand: %+v", left)
		}
		if got := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", "")); !strings.Contains(got, "blockyard_router_bodies_refused_total 4\n") {
			t.Error("metrics do not show four refused bodies")
		}
	})
}

// stalledBody gives a part of its body and then waits until it is interrupted.
type stalledBody struct {
	io.Reader
	interrupted chan struct{}
}

func (s *stalledBody) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if n == 0 && errors.Is(err, io.EOF) {
		<-s.interrupted
		return 0, os.ErrDeadlineExceeded
	}
	return n, err
}

// Uploads that stall give their room to those that come, the slowest first, whoever
// sends them: large prompts are routed as before.
func TestSlowUploadsGiveWay(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		a := New(b.Router, Options{})
		a.service.bodies = bodies.New(400<<10, 400<<10, &b.Router.Metrics().API.Bodies)
		s, h := a.service, a.Handler()
		prompt := func(n int) string { return `{"method":"overlap","tokens":[1` + strings.Repeat(" ", n) + `]}` }
		answers := make(chan reply, 4)
		var interrupts []func()
		for i, n := range []int{100 << 10, 90 << 10, 80 << 10, 40 << 10} {
			stalled := &stalledBody{strings.NewReader(prompt(n)[:n]), make(chan struct{})}
			interrupt := sync.OnceFunc(func() { close(stalled.interrupted) })
			from := caller{client: []string{"192.0.2.1", "198.51.100.7"}[i%2], readBy: func(by time.Time) {
				if by.Before(time.Now()) {
					interrupt()
				}
			}}
			interrupts = append(interrupts, interrupt)
			go func() { answers <- s.route(b.T.Context(), stalled, from) }()
			synctest.Wait()
		}
		if r, got := b.Route(h, "", prompt(100<<10)); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("beside uploads that have just begun: %d %.200s", r.StatusCode, got)
		}
		b.Pass(bodies.SlowAfter)
		for range 3 {
			if r, got := b.Route(h, "", prompt(100<<10)); r.StatusCode != http.StatusOK {
				t.Errorf("beside uploads that have stalled: %d %.200s", r.StatusCode, got)
			}
		}
		synctest.Wait()
		ended := len(answers)
		if ended == 0 || ended == 4 || int(b.Router.Metrics().API.Bodies.Stats().Slow) != ended {
			t.Errorf("%d of 4 stalled uploads have ended, counted %d", ended, b.Router.Metrics().API.Bodies.Stats().Slow)
		}
		for range ended {
			if out := <-answers; out.status != http.StatusRequestTimeout {
				t.Errorf("a stalled upload: %+v", out)
			}
		}
		for _, interrupt := range interrupts {
			interrupt()
		}
		for range 4 - ended {
			<-answers
		}
		synctest.Wait()
		if left := a.service.bodies.Usage(); left != (bodies.Usage{}) {
			t.Errorf("left when nothing is at hand: %+v", left)
		}
	})
}

// Bodies of POST /v1/tokens take room beside those of routes, until they are answered, and give all
// of it back. One that stalls is answered 408.
func TestTokensBodiesAreBounded(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		asked, letGo := make(chan struct{}), make(chan struct{})
		a := New(b.Router, Options{Tokenize: func(_ context.Context, body []byte) (Tokenized, error) {
			if body[0] == 'x' {
				close(asked)
				<-letGo
			}
			return Tokenized{Tokens: []uint32{1}}, nil
		}})
		a.service.bodies = bodies.New(300<<10, 190<<10, &b.Router.Metrics().API.Bodies)
		h := a.Handler()
		large := strings.Repeat(" ", 80<<10)
		status := func(method, path, body string) int { return routertest.Call(b.T, h, method, path, "", body).StatusCode }
		answered := make(chan int)
		go func() { answered <- status("POST", "/v1/tokens", "x"+large) }()
		<-asked
		if r, _ := b.Route(h, "", `{"method":"overlap","tokens":[1]`+large+`}`); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a large route beside large tokens: %d", r.StatusCode)
		}
		if got := status("POST", "/v1/tokens", large); got != http.StatusServiceUnavailable {
			t.Errorf("large tokens beside large tokens: %d", got)
		}
		close(letGo)
		if got := <-answered; got != http.StatusOK {
			t.Errorf("the first: %d", got)
		}
		stalled := &stalledBody{strings.NewReader(large), make(chan struct{})}
		close(stalled.interrupted)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("POST", "/v1/tokens", stalled)); w.Code != http.StatusRequestTimeout {
			t.Errorf("a stalled body: %d %s", w.Code, w.Body)
		}
		if left := a.service.bodies.Usage(); left != (bodies.Usage{}) {
			t.Errorf("left when nothing is at hand: %+v", left)
		}
	})
}

// What waits for a worker keeps its room, but does not keep others from being read.
func TestWaitingRequestsKeepTheirRoom(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.HalfAStep()}, func(b *routertest.Bench) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		p.Meta.Card.MaxBatchedTokens = sourcetest.BlockSize
		b.Send(p.Announce())
		a := New(b.Router, Options{})
		a.service.bodies = bodies.New(300<<10, 300<<10, &b.Router.Metrics().API.Bodies)
		h := a.Handler()
		padding := strings.Repeat(" ", 80<<10)
		b.Route(h, "r1", routertest.NewBody("", 1))
		waits := b.Later(h, "r2", routertest.NewBody(padding, 2))
		if n := b.Router.Stats().Requests.Queue.Pending; n != 1 {
			t.Fatalf("%d wait", n)
		}
		if r, got := b.Route(h, "", `{"method":"overlap","tokens":[1]`+padding+`}`); r.StatusCode != http.StatusOK {
			t.Errorf("beside one that waits: %d %.200s", r.StatusCode, got)
		}
		if r, _ := b.Route(h, "", `{"method":"overlap","tokens":[1]`+padding+padding+`}`); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("more than what waits leaves: %d", r.StatusCode)
		}
		b.Route(h, "r1", `{"method":"mark_free"}`)
		if got := <-waits; got != "r2 200" {
			t.Error(got)
		}
	})
}
