package router_test

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestMixedFleet: of one model a worker with events goes by events and a worker without by
// decisions, and each answer says which. When the second one publishes events, these count.
func TestMixedFleet(t *testing.T) {
	options := router.Options{Config: routertest.FirstOfEqual()}
	routertest.OnRegistryWith(t, options, registry.Options{}, func(b *routertest.Bench, g *registry.Source) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce())
		b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(1, 2)))
		if err := g.Register(routertest.SomeWorker(2), time.Hour); err != nil {
			t.Fatal(err)
		}
		g.Announce(2)
		b.Pass(time.Second)
		b.Send(p.Announce())
		b.Expect("by events", sourcetest.Tokens(1, 2), 1, 2, feed.Exact)

		prompt := sourcetest.Tokens(7, 8, 9)
		m, err := b.Router.FindBestMatch(t.Context(), &router.Request{
			ID: "a", Tokens: prompt, UpdateStates: true, Allowed: map[kv.WorkerID]struct{}{2: {}},
		})
		if err != nil || m.Quality != feed.Fallback {
			t.Errorf("a worker that tells nothing: %s, %v; want fallback", m.Quality, err)
		}
		if !b.Router.Free("m", "a") {
			t.Fatal("the request is not known")
		}
		b.Expect("by the decision", prompt, 2, 3, feed.Fallback)
		b.Expect("by events again", sourcetest.Tokens(1, 2), 1, 2, feed.Exact)

		late := b.Publisher(0x12, sourcetest.WorkerOwner(2), 0)
		b.Send(late.Announce())
		b.Send(late.Store(kv.TierDevice, sourcetest.Tokens(7)))
		b.Send(late.Announce())
		b.Expect("by its own events", prompt, 2, 1, feed.Exact)
	})
}
