package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// natsRouter is a router that serves over a real NATS server, with two workers that
// announced themselves there.
type natsRouter struct {
	t      *testing.T
	router *router.Router
	api    *API
	client *nats.Conn
	stop   func()
}

func newNATSRouter(t *testing.T, url string, worker uint64) *natsRouter {
	t.Helper()
	return newNATSRouterWith(t, url, worker, router.Options{}, drainTimeout)
}

func newNATSRouterWith(t *testing.T, url string, worker uint64, o router.Options, drain time.Duration) *natsRouter {
	t.Helper()
	n, err := natssource.Connect(natssource.Options{URL: url, Cluster: "c"})
	if err != nil {
		t.Fatal(err)
	}
	o.Replicas, o.Indexers = n, n
	r, err := router.New(o, n)
	if err != nil {
		t.Fatal(err)
	}
	a := New(r, Options{})
	client, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	running.Go(func() {
		if err := a.serveNATS(ctx, n, drain); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	out := &natsRouter{t: t, router: r, api: a, client: client, stop: sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})}
	t.Cleanup(func() {
		out.stop()
		client.Close()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	p := sourcetest.NewWirePublisher(t, url, "c", sourcetest.NewPublisher(worker, sourcetest.WorkerOwner(worker), 0))
	p.Meta.PublisherID = worker
	sourcetest.Eventually(t, "a worker", func() bool {
		p.SendAnnouncement("c")
		return len(r.Workers()) > 0
	})
	return out
}

// ask sends a request and returns the reply.
func (r *natsRouter) ask(subject, id, body string) *nats.Msg {
	r.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	if id != "" {
		m.Header.Set(RequestIDHeader, id)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	answer, err := r.client.RequestMsgWithContext(ctx, m)
	if err != nil {
		r.t.Fatalf("%s: %v", body, err)
	}
	return answer
}

// serving waits until the router's subscription is known to the server.
func (r *natsRouter) serving() {
	r.t.Helper()
	sourcetest.Eventually(r.t, "a router on "+RouteSubject("c"), func() bool {
		_, err := r.client.Request(RouteSubject("c"), []byte(`{"method":"mark_free","request_id":"nobody"}`), time.Second)
		return err == nil
	})
}

func TestRouteOverNATS(t *testing.T) {
	r := newNATSRouter(t, sourcetest.StartServer(t).ClientURL(), 7)
	r.serving()
	prompt := routertest.TokensJSON(sourcetest.Tokens(1, 2))
	own := ""
	for _, c := range []struct{ id, body, want string }{
		{"r1", `{"method":"new","tokens":` + prompt + `}`, `{"method":"new","worker_id":7,"dp_rank":0,"overlap_blocks":0}`},
		{"r1", `{"method":"mark_prefill"}`, `{"method":"prefill_marked","success":true}`},
		{"", `{"method":"mark_free","request_id":"r1"}`, `{"method":"free_marked","success":true,"active":true}`},
		{"", `{"method":"potential_loads","tokens":` + prompt + `}`,
			`{"method":"potential_loads","loads":[{"worker_id":7,"dp_rank":0,"potential_prefill_tokens":8,"potential_decode_blocks":2}],"pending_count":0,"pending_isl_tokens":0}`},
	} {
		subject := RouteSubject("c")
		if own != "" {
			subject = own
		}
		m := r.ask(subject, c.id, c.body)
		if string(m.Data) != c.want {
			t.Errorf("%s: %s, want %s", c.body, m.Data, c.want)
		}
		if q := m.Header.Get(QualityHeader); q != string(feed.Exact) {
			t.Errorf("%s: quality %q", c.body, q)
		}
		if own = m.Header.Get(RouterHeader); !strings.HasPrefix(own, RouteSubject("c")+".") {
			t.Fatalf("%s: the reply comes from %q", c.body, own)
		}
	}
	m := r.ask(RouteSubject("c"), "", `{"method":"new","tokens":[1]}`)
	if id := m.Header.Get(RequestIDHeader); id == "" || !r.router.Free("", id) {
		t.Errorf("request id %q does not name the request", id)
	}
}

func TestErrorsOverNATSNameFieldAndStatus(t *testing.T) {
	r := newNATSRouter(t, sourcetest.StartServer(t).ClientURL(), 7)
	r.serving()
	r.ask(RouteSubject("c"), "twice", `{"method":"new","tokens":[1]}`)
	for _, c := range []struct{ id, body, code, want string }{
		{"", ``, "400", "body"},
		{"", `{"method":"old"}`, "400", "method"},
		{"", `{"method":"mark_free"}`, "400", "request_id"},
		{"", `{"method":"new","tokens":[1],"color":2}`, "400", `unknown field "color"`},
		{"", `{"method":"new","tokens":[1,-2]}`, "400", "tokens[1]"},
		{strings.Repeat("x", 257), `{"method":"new","tokens":[1]}`, "400", "X-Request-Id: 257 bytes are more than 256"},
		{"twice", `{"method":"new","tokens":[1]}`, "409", "active already"},
	} {
		m := r.ask(RouteSubject("c"), c.id, c.body)
		var answer struct{ Error string }
		if err := json.Unmarshal(m.Data, &answer); err != nil || !strings.Contains(answer.Error, c.want) {
			t.Errorf("%.40s: %s, %v; want an error with %q", c.body, m.Data, err, c.want)
		}
		if code := m.Header.Get(NATSErrorCodeHeader); code != c.code || m.Header.Get(NATSErrorHeader) == "" {
			t.Errorf("%.40s: code %q, text %q; want %s", c.body, code, m.Header.Get(NATSErrorHeader), c.code)
		}
	}
}

// A request that is booked on one of two routers can be ended there, and each
// request reaches one of them only.
func TestRoutersShareTheirSubjectAndHaveTheirOwn(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	a, b := newNATSRouter(t, url, 7), newNATSRouter(t, url, 8)
	sourcetest.Eventually(t, "workers of both", func() bool { return len(a.router.Workers()) > 0 && len(b.router.Workers()) > 0 })
	a.serving()
	subjects := make(map[string][]string)
	for i := range 64 {
		id := fmt.Sprintf("r%d", i)
		m := a.ask(RouteSubject("c"), id, `{"method":"new","tokens":[1]}`)
		subjects[m.Header.Get(RouterHeader)] = append(subjects[m.Header.Get(RouterHeader)], id)
	}
	if booked := a.router.Stats().Requests.Load.Added + b.router.Stats().Requests.Load.Added; booked != 64 {
		t.Errorf("%d bookings of 64 requests", booked)
	}
	for subject, ids := range subjects {
		for _, id := range ids {
			if m := a.ask(subject, id, `{"method":"mark_prefill"}`); !strings.Contains(string(m.Data), "true") {
				t.Errorf("%s on %s: %s", id, subject, m.Data)
			}
			a.ask(subject, id, `{"method":"mark_free"}`)
		}
	}
	if n := a.router.Stats().Requests.Load.Requests + b.router.Stats().Requests.Load.Requests; n != 0 {
		t.Errorf("%d requests are left", n)
	}
}

// When as many requests are being routed as there may be, another one is turned away,
// and what ends requests gets through.
func TestTooManyRequestsAreTurnedAway(t *testing.T) {
	r := newNATSRouter(t, sourcetest.StartServer(t).ClientURL(), 7)
	r.serving()
	r.ask(RouteSubject("c"), "first", `{"method":"new","tokens":[1]}`)
	for range maxNewRequests {
		r.api.service.routing <- struct{}{}
	}
	m := r.ask(RouteSubject("c"), "more", `{"method":"new","tokens":[1]}`)
	if code := m.Header.Get(NATSErrorCodeHeader); code != "503" || !strings.Contains(string(m.Data), "too many requests") {
		t.Errorf("one more: %s %s", code, m.Data)
	}
	r.ask(RouteSubject("c"), "first", `{"method":"mark_free"}`)
	for range maxNewRequests {
		<-r.api.service.routing
	}
	if n := r.router.Stats().Requests.Load; n.Requests != 0 || n.Freed != 1 {
		t.Errorf("requests %+v", n)
	}
	r.ask(RouteSubject("c"), "more", `{"method":"new","tokens":[1]}`)
}

// A reply that nobody can get does not leave its request on a worker's account.
func TestUndeliveredRepliesAreNotBooked(t *testing.T) {
	r := newNATSRouter(t, sourcetest.StartServer(t).ClientURL(), 7)
	r.serving()
	if err := r.client.Publish(RouteSubject("c"), []byte(`{"method":"new","tokens":[1]}`)); err != nil {
		t.Fatal(err)
	}
	sourcetest.Eventually(t, "an undelivered reply that was booked and freed", func() bool {
		s := r.router.Stats().Requests.Load
		return r.router.Metrics().API.NATSUndelivered.Load() == 1 && s.Added == 1 && s.Freed == 1 && s.Requests == 0
	})
}

// Serving begins before there is a server, survives its absence, and ends with what
// is at hand answered.
func TestServingOverNATSOutlivesTheServer(t *testing.T) {
	first := sourcetest.StartServer(t)
	port := first.Addr().(*net.TCPAddr).Port
	r := newNATSRouter(t, first.ClientURL(), 7)
	r.serving()
	first.Shutdown()
	first.WaitForShutdown()
	sourcetest.Eventually(t, "a lost connection", func() bool { return !r.router.Stats().Transport.Connected })
	sourcetest.StartServer(t, func(o *server.Options) { o.Port = port })
	r.serving()
	m := r.ask(RouteSubject("c"), "again", `{"method":"new","tokens":[1]}`)
	if !strings.Contains(string(m.Data), `"worker_id":7`) {
		t.Errorf("after the outage: %s", m.Data)
	}
	r.stop()
	if _, err := r.client.Request(RouteSubject("c"), []byte(`{}`), time.Second); err == nil {
		t.Error("a request is answered after the end")
	}
}

// later sends a request and returns at once; the answer's code and text come later.
func (r *natsRouter) later(id string) <-chan string {
	answer := make(chan string, 1)
	m := nats.NewMsg(RouteSubject("c"))
	m.Data = []byte(`{"method":"new","tokens":[1,2,3,4]}`)
	m.Header.Set(RequestIDHeader, id)
	go func() {
		ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
		defer cancel()
		got, err := r.client.RequestMsgWithContext(ctx, m)
		if err != nil {
			answer <- err.Error()
			return
		}
		answer <- got.Header.Get(NATSErrorCodeHeader) + " " + string(got.Data)
	}()
	return answer
}

// waiting is a router on which one request, "first", runs and another one waits for it.
func waiting(t *testing.T, drain time.Duration) (r *natsRouter, second <-chan string) {
	t.Helper()
	c := routertest.Configured(func(c *config.Config) {
		few := 1e-9 // of ten million tokens
		c.RouterQueueThreshold = &few
	})
	r = newNATSRouterWith(t, sourcetest.StartServer(t).ClientURL(), 7, router.Options{Config: c}, drain)
	r.serving()
	r.ask(RouteSubject("c"), "first", `{"method":"new","tokens":[1,2,3,4]}`)
	second = r.later("second")
	sourcetest.Eventually(t, "a request that waits", func() bool { return r.router.Stats().Requests.Queue.Pending == 1 })
	return r, second
}

// What waits for a worker when the router stops is answered: with an error when no worker
// has time for it soon, and nothing is left in the queue or on the account.
func TestWaitingRequestsAreToldThatTheRouterStops(t *testing.T) {
	r, second := waiting(t, 10*time.Millisecond)
	r.stop()
	if got := <-second; !strings.HasPrefix(got, "503 ") || !strings.Contains(got, "the router is stopping") {
		t.Errorf("got %s", got)
	}
	if s := r.router.Stats().Requests; s.Queue.Pending != 0 || s.Queue.Retracted != 1 || s.Load.Requests != 1 {
		t.Errorf("stats %+v", s)
	}
}

// What finds a worker while the router drains is sent there.
func TestWaitingRequestsAreServedWhileTheRouterDrains(t *testing.T) {
	r, second := waiting(t, time.Minute) // nobody waits as long
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	sourcetest.Eventually(t, "no more requests are taken", func() bool {
		_, err := r.client.Request(RouteSubject("c"), []byte(`{"method":"mark_free","request_id":"nobody"}`), time.Second)
		return errors.Is(err, nats.ErrNoResponders)
	})
	if !r.router.Free("", "first") {
		t.Error("the first request is not active")
	}
	if got := <-second; !strings.Contains(got, `"worker_id":7`) {
		t.Errorf("got %s", got)
	}
	<-stopped
}
