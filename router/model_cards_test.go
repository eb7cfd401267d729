package router_test

import (
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// Requests wait while more than the threshold's share of a step is pending, of a step as
// the worker announced it; one that announces a larger step takes them.
func TestQueueGoesByTheAnnouncedStep(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.HalfAStep()}, func(b *routertest.Bench) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		p.Meta.Card.MaxBatchedTokens = 4 * sourcetest.BlockSize
		b.Send(p.Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		if got := <-b.Later(h, "half", routertest.NewBody("", 1, 2)); got != "half 200" {
			t.Error(got)
		}
		if got := <-b.Later(h, "more", routertest.NewBody("", 3)); got != "more 200" {
			t.Errorf("at the threshold and not above: %s", got)
		}
		waits := b.Later(h, "waits", routertest.NewBody("", 4))
		if n := b.Router.Stats().Requests.Queue.Pending; n != 1 {
			t.Fatalf("%d wait behind three blocks of a step of four", n)
		}
		p.Meta.Card.MaxBatchedTokens = 8 * sourcetest.BlockSize
		b.Send(p.Announce())
		if got := <-waits; got != "waits 200" {
			t.Error(got)
		}
	})
}

// Labels that a worker announces select it where they are required, and updateLost where they
// are preferred; a worker that announces others is another one for that.
func TestAnnouncedTaintsSelect(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		p1, p2 := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0), b.Publisher(0x12, sourcetest.WorkerOwner(2), 0)
		p2.Meta.Card.Taints = "gpu=b,zone=1"
		b.Send(p1.Announce(), p2.Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		choose := func(constraints, want string) {
			t.Helper()
			_, got := b.Route(h, "r", routertest.NewBody(`,"routing_constraints":`+constraints, 1, 9))
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", constraints, got, want)
			}
			b.Router.Free("", "r")
		}
		choose(`{"required_taints":[]}`, `"worker_id":1`)
		choose(`{"required_taints":["zone=1","gpu=b"]}`, `"worker_id":2`)
		choose(`{"preferred_taints":{"gpu=b":0.5}}`, `"worker_id":2`)
		choose(`{"preferred_taints":{"gpu=b":-0.5}}`, `"worker_id":1`)
		choose(`{"required_taints":["gpu=a"]}`, `taints`)
		p1.Meta.Card.Taints, p2.Meta.Card.Taints = "gpu=a", ""
		b.Send(p1.Announce(), p2.Announce())
		choose(`{"required_taints":["gpu=a"]}`, `"worker_id":1`)
		choose(`{"required_taints":["gpu=b"]}`, `taints`)
	})
}

// A request of which nothing is heard, or whose worker is gone, is off the estimator's
// books when it is off the account's.
func TestEstimatorForgetsWhatTheAccountForgets(t *testing.T) {
	c := routertest.Configured(func(c *config.Config) { c.Score, c.ActiveRequestExpirySecs = config.ScorePrice, 10 })
	routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
		p1, p2 := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0), b.Publisher(0x12, sourcetest.WorkerOwner(2), 0)
		p2.Meta.Card.Incarnation = 1
		b.Send(p1.Announce(), p2.Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		expect := func(when string, followed int, abandoned uint64) {
			t.Helper()
			if s := b.Router.Stats().Models[0].Estimate; s.Requests != followed || s.Abandoned != abandoned || s.Expired != 0 {
				t.Errorf("%s: %+v, want %d followed and %d abandoned", when, s, followed, abandoned)
			}
		}
		b.Route(h, "silent", routertest.NewBody(`,"pinned_worker":{"worker_id":1}`, 1))
		expect("one is sent", 1, 0)
		for range 11 {
			b.Pass(time.Second)
			b.Send(p1.Announce(), p2.Announce())
		}
		expect("it is silent", 0, 1)
		b.Route(h, "lost", routertest.NewBody(`,"pinned_worker":{"worker_id":2}`, 1))
		expect("another one is sent", 1, 1)
		restarted := b.Publisher(0x13, sourcetest.WorkerOwner(2), 0)
		restarted.Meta.Card.Incarnation = 2
		b.Send(p2.Goodbye(), restarted.Announce())
		expect("its worker starts anew", 0, 2)
		if s := b.Router.Stats().Requests.Load; s.Requests != 0 || s.Expired != 1 || s.Abandoned != 1 {
			t.Errorf("account %+v", s)
		}
	})
}

// The setting is_eagle has blocks hashed over pairs of tokens: the last of a prompt's two
// blocks lacks the token behind it, and is no block that a worker could have.
func TestEagleSettingReachesTheHashes(t *testing.T) {
	for eagle, want := range map[bool]string{false: `"overlap_blocks":2`, true: `"overlap_blocks":1`} {
		c := routertest.Configured(func(c *config.Config) { c.UseKVEvents, c.FirstOfEqual, c.IsEagle = false, true, eagle })
		routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
			routertest.TwoWorkers(b)
			h := api.New(b.Router, api.Options{}).Handler()
			b.Route(h, "r", routertest.NewBody("", 1, 2))
			b.Route(h, "r", `{"method":"mark_free"}`)
			if _, got := b.Route(h, "r", routertest.NewBody("", 1, 2)); !strings.Contains(got, want) {
				t.Errorf("eagle %v: %s, want %s", eagle, got, want)
			}
		})
	}
}
