package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// alwaysBusy is a configuration by which any prefill makes a worker busy.
func alwaysBusy() *config.Config {
	return routertest.Configured(func(c *config.Config) {
		few := 1e-9 // of ten million tokens
		c.RouterQueueThreshold = &few
	})
}

// ask has the service route a request; its answer comes later.
func (s *service) ask(ctx context.Context, c caller, body string) <-chan reply {
	answer := make(chan reply, 1)
	go func() { answer <- s.route(ctx, strings.NewReader(body), c) }()
	synctest.Wait()
	return answer
}

// Requests that wait for one worker do not keep those out that another one has time
// for: they give their place, and that of their transport, back.
func TestWaitingRequestsLeaveRoomForOthers(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: alwaysBusy()}, func(b *routertest.Bench) {
		b.Send(b.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce(), b.Publisher(0x12, sourcetest.WorkerOwner(2), 0).Announce())
		a := New(b.Router, Options{})
		h := a.Handler()
		b.Route(h, "r0", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 1, 2, 3, 4))
		ctx, leave := context.WithCancel(b.T.Context())
		defer synctest.Wait()
		defer leave()
		told := 0
		for i := range maxNewRequests {
			go a.service.route(ctx, strings.NewReader(routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 5)), caller{id: fmt.Sprint("w", i)})
		}
		a.service.ask(ctx, caller{id: "told", onWait: func() { told++ }}, routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 5))
		if n := b.Router.Stats().Requests.Queue.Pending; n != maxNewRequests+1 || told != 1 {
			t.Errorf("%d wait, want %d; the transport was told %d times", n, maxNewRequests+1, told)
		}
		if r, got := b.Route(h, "x", routertest.NewBody(`,"pinned_worker":{"worker_id":2}`, 9)); r.StatusCode != http.StatusOK {
			t.Errorf("worker 2 is idle: %d %s", r.StatusCode, got)
		}
		if n := len(a.service.routing); n != 0 {
			t.Errorf("%d places are taken by nobody", n)
		}
	})
}

// A request does not wait for longer than it says, or than its transport lets it; then
// it is in no queue and on no account.
func TestPatienceEnds(t *testing.T) {
	for _, c := range []struct {
		more   string
		caller caller
		after  time.Duration
	}{
		{`,"timeout_ms":1500`, caller{}, 1500 * time.Millisecond},
		{``, caller{timeout: natsTimeout}, natsTimeout},
		{`,"timeout_ms":100`, caller{timeout: natsTimeout}, 100 * time.Millisecond},
		{`,"timeout_ms":40000`, caller{timeout: natsTimeout}, 40 * time.Second},
	} {
		routertest.OnBench(t, router.Options{Config: alwaysBusy(), FeedTimeout: time.Hour}, func(b *routertest.Bench) {
			b.Send(b.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
			b.Route(New(b.Router, Options{}).Handler(), "first", routertest.NewBody("", 1, 2, 3, 4))
			answer := newService(b.Router, nil).ask(b.T.Context(), c.caller, routertest.NewBody(c.more, 5))
			b.Pass(c.after - time.Millisecond)
			select {
			case got := <-answer:
				t.Fatalf("%s: %+v too early", c.more, got)
			default:
			}
			b.Pass(2 * time.Millisecond)
			if got := <-answer; got.status != 529 || !strings.Contains(got.failed, "timeout_ms") {
				t.Errorf("%s: %+v", c.more, got)
			}
			if s := b.Router.Stats().Requests; s.Queue.Pending != 0 || s.Queue.Retracted != 1 || s.Load.Added != 1 {
				t.Errorf("%s: %+v", c.more, s)
			}
		})
	}
}

// Over NATS nobody notices when who asks has gone. A request that has waited there is
// off the books soon when nothing is heard of it, and stays when it is heard of.
func TestWhoLeftOverNATSIsNotBookedForLong(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: alwaysBusy(), FeedTimeout: time.Hour}, func(b *routertest.Bench) {
		b.Send(b.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
		h := New(b.Router, Options{}).Handler()
		b.Route(h, "first", routertest.NewBody("", 1, 2, 3, 4))
		over := func(id string) caller { return caller{id: id, unwatched: true, timeout: natsTimeout} }
		gone := newService(b.Router, nil).ask(b.T.Context(), over("gone"), routertest.NewBody("", 5))
		b.Route(h, "first", `{"method":"mark_prefill"}`)
		if got := <-gone; got.unbook == nil {
			t.Fatalf("%+v", got)
		}
		here := newService(b.Router, nil).ask(b.T.Context(), over("here"), routertest.NewBody(`,"timeout_ms":60000`, 6))
		b.Pass(31 * time.Second)
		if got := <-here; got.status != http.StatusOK {
			t.Fatalf("behind one that left: %+v", got)
		}
		b.Route(h, "here", `{"method":"mark_prefill"}`)
		b.Pass(31 * time.Second)
		if s := b.Router.Stats().Requests.Load; s.Requests != 2 || s.Unheard != 1 {
			t.Errorf("%+v, want the first and the one that is here", s)
		}
	})
}
