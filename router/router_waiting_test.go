package router

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/router/config"
)

// impatient is a configuration by which any prefill makes a worker busy.
func impatient() *config.Config {
	return configured(func(c *config.Config) {
		few := 1e-9 // of ten million tokens
		c.RouterQueueThreshold = &few
	})
}

// ask has the service route a request; its answer comes later.
func (b *bench) ask(ctx context.Context, c caller, body string) <-chan reply {
	s, answer := b.router.service(), make(chan reply, 1)
	go func() { answer <- s.route(ctx, strings.NewReader(body), c) }()
	synctest.Wait()
	return answer
}

// Requests that wait for one worker do not keep those out that another one has time
// for: they give their place, and that of their transport, back.
func TestWaitingRequestsLeaveRoomForOthers(t *testing.T) {
	onBench(t, Options{Config: impatient()}, func(b *bench) {
		b.send(b.publisher(0x11, workerOwner(1), 0).announce(), b.publisher(0x12, workerOwner(2), 0).announce())
		h := b.router.Handler()
		b.route(h, "r0", newBody(`,"pinned_worker":{"worker_id":1}`, 1, 2, 3, 4))
		ctx, leave := context.WithCancel(b.t.Context())
		defer synctest.Wait()
		defer leave()
		told := 0
		for i := range maxNewRequests {
			s := b.router.service()
			go s.route(ctx, strings.NewReader(newBody(`,"pinned_worker":{"worker_id":1}`, 5)), caller{id: fmt.Sprint("w", i)})
		}
		b.ask(ctx, caller{id: "told", waits: func() { told++ }}, newBody(`,"pinned_worker":{"worker_id":1}`, 5))
		if n := onlyModel(t, b.router.models).decide.PendingCount(); n != maxNewRequests+1 || told != 1 {
			t.Errorf("%d wait, want %d; the transport was told %d times", n, maxNewRequests+1, told)
		}
		if r, got := b.route(h, "x", newBody(`,"pinned_worker":{"worker_id":2}`, 9)); r.StatusCode != http.StatusOK {
			t.Errorf("worker 2 is idle: %d %s", r.StatusCode, got)
		}
		if n := len(b.router.routing); n != 0 {
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
		{``, caller{patience: natsPatience}, natsPatience},
		{`,"timeout_ms":100`, caller{patience: natsPatience}, 100 * time.Millisecond},
		{`,"timeout_ms":40000`, caller{patience: natsPatience}, 40 * time.Second},
	} {
		onBench(t, Options{Config: impatient(), FeedTimeout: time.Hour}, func(b *bench) {
			b.send(b.publisher(0x11, workerOwner(1), 0).announce())
			b.route(b.router.Handler(), "first", newBody("", 1, 2, 3, 4))
			answer := b.ask(b.t.Context(), c.caller, newBody(c.more, 5))
			b.pass(c.after - time.Millisecond)
			select {
			case got := <-answer:
				t.Fatalf("%s: %+v too early", c.more, got)
			default:
			}
			b.pass(2 * time.Millisecond)
			if got := <-answer; got.status != 529 || !strings.Contains(got.failed, "timeout_ms") {
				t.Errorf("%s: %+v", c.more, got)
			}
			if s := b.router.Stats().Requests; s.Queue.Pending != 0 || s.Queue.Retracted != 1 || s.Load.Added != 1 {
				t.Errorf("%s: %+v", c.more, s)
			}
		})
	}
}

// Over NATS nobody notices when who asks has gone. A request that has waited there is
// off the books soon when nothing is heard of it, and stays when it is heard of.
func TestWhoLeftOverNATSIsNotBookedForLong(t *testing.T) {
	onBench(t, Options{Config: impatient(), FeedTimeout: time.Hour}, func(b *bench) {
		b.send(b.publisher(0x11, workerOwner(1), 0).announce())
		h := b.router.Handler()
		b.route(h, "first", newBody("", 1, 2, 3, 4))
		over := func(id string) caller { return caller{id: id, unseen: true, patience: natsPatience} }
		gone := b.ask(b.t.Context(), over("gone"), newBody("", 5))
		b.route(h, "first", `{"method":"mark_prefill"}`)
		if got := <-gone; got.unbook == nil {
			t.Fatalf("%+v", got)
		}
		here := b.ask(b.t.Context(), over("here"), newBody(`,"timeout_ms":60000`, 6))
		b.pass(31 * time.Second)
		if got := <-here; got.status != http.StatusOK {
			t.Fatalf("behind one that left: %+v", got)
		}
		b.route(h, "here", `{"method":"mark_prefill"}`)
		b.pass(31 * time.Second)
		if s := b.router.Stats().Requests.Load; s.Requests != 2 || s.Unheard != 1 {
			t.Errorf("%+v, want the first and the one that is here", s)
		}
	})
}
