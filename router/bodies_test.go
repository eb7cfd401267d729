package router

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
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
	onBench(t, Options{}, func(b *bench) {
		twoWorkers(b)
		b.router.bodies.reading.most, b.router.bodies.kept.most = 100<<10, 150<<10
		s, h := b.router.service(), b.router.Handler()
		large := func(method string, n int) string {
			return `{"method":"` + method + `","tokens":[1` + strings.Repeat(" ", n) + `]}`
		}
		first := &slowBody{strings.NewReader(large("overlap", 80<<10)), make(chan struct{}), make(chan struct{})}
		answered := make(chan reply)
		go func() { answered <- s.route(b.t.Context(), first, caller{}) }()
		<-first.read
		for _, method := range []string{"new", "overlap", "potential_loads"} {
			if r, got := b.route(h, "", large(method, 80<<10)); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got, errBusy.Error()) {
				t.Errorf("%s beside a large body: %d %.200s", method, r.StatusCode, got)
			}
			if r, got := b.route(h, "", large(method, freeBody-200)); r.StatusCode != http.StatusOK {
				t.Errorf("a small %s beside a large body: %d %.200s", method, r.StatusCode, got)
			}
		}
		close(first.letGo)
		if out := <-answered; out.status != http.StatusOK {
			t.Errorf("the first: %+v", out)
		}
		if r, got := b.route(h, "", large("overlap", 110<<10)); r.StatusCode != http.StatusOK {
			t.Errorf("after the first, as much as there is room for: %d %.200s", r.StatusCode, got)
		}
		if r, _ := b.route(h, "", large("overlap", 140<<10)); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("more than there is room for: %d", r.StatusCode)
		}
		if n, k := b.router.bodies.reading.used.Load(), b.router.bodies.kept.used.Load(); n != 0 || k != 0 {
			t.Errorf("%d bytes are being read and %d kept when nothing is at hand", n, k)
		}
		if got := text(t, call(t, h, "GET", "/metrics", "", "")); !strings.Contains(got, "blockyard_router_bodies_refused_total 4\n") {
			t.Error("metrics do not show four refused bodies")
		}
	})
}

// What waits for a worker keeps its room, but does not keep others from being read.
func TestWaitingRequestsKeepTheirRoom(t *testing.T) {
	onBench(t, Options{Config: halfAStep()}, func(b *bench) {
		p := b.publisher(0x11, workerOwner(1), 0)
		p.meta.Card.MaxBatchedTokens = testBlockSize
		b.send(p.announce())
		b.router.bodies.reading.most, b.router.bodies.kept.most = 100<<10, 150<<10
		h := b.router.Handler()
		padding := strings.Repeat(" ", 80<<10)
		b.route(h, "r1", newBody("", 1))
		waits := b.later(h, "r2", newBody(padding, 2))
		if n := b.router.Stats().Requests.Queue.Pending; n != 1 {
			t.Fatalf("%d wait", n)
		}
		if r, got := b.route(h, "", `{"method":"overlap","tokens":[1]`+padding+`}`); r.StatusCode != http.StatusOK {
			t.Errorf("beside one that waits: %d %.200s", r.StatusCode, got)
		}
		if r, _ := b.route(h, "", `{"method":"overlap","tokens":[1]`+padding+padding+`}`); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("more than what waits leaves: %d", r.StatusCode)
		}
		b.route(h, "r1", `{"method":"mark_free"}`)
		if got := <-waits; got != "r2 200" {
			t.Error(got)
		}
	})
}
