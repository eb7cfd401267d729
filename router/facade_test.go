package router_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// A worker that starts anew has nothing of what was sent to it before, also where that is
// all that is known.
func TestApproximateModeForgetsARestartedWorker(t *testing.T) {
	c := routertest.Configured(func(c *config.Config) { c.UseKVEvents, c.FirstOfEqual = false, true })
	routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
		first, second := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0), b.Publisher(0x99, sourcetest.WorkerOwner(1), 0)
		first.Meta.Card.Incarnation, second.Meta.Card.Incarnation = 1, 2
		b.Send(first.Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		b.Route(h, "r", routertest.NewBody("", 1, 2))
		b.Route(h, "r", `{"method":"mark_free"}`)
		if got := routertest.Text(t, routertest.Call(t, api.New(b.Router, api.Options{}).ControlHandler(), "GET", "/v1/dump", "", "")); strings.Count(got, `"block_hash":`) != 2 {
			t.Errorf("the dump does not show the two blocks that are expected: %s", got)
		}
		b.Send(second.Announce())
		for _, want := range []string{`"overlap_blocks":0`, `"overlap_blocks":2`} {
			if _, got := b.Route(h, "r", routertest.NewBody("", 1, 2)); !strings.Contains(got, want) {
				t.Errorf("after the restart: %s, want %s", got, want)
			}
			b.Route(h, "r", `{"method":"mark_free"}`)
		}
	})
}

// The quality of a request that waited is not better than at either end of the wait.
func TestQualityCoversTheWait(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.HalfAStep()}, func(b *routertest.Bench) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		p.Meta.Card.MaxBatchedTokens = sourcetest.BlockSize
		b.Send(p.Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		b.Route(h, "r1", routertest.NewBody("", 1))
		quality := make(chan feed.Quality, 1)
		go func() {
			m, err := b.Router.FindBestMatch(b.T.Context(), &router.Request{Tokens: sourcetest.Tokens(2)})
			if err != nil {
				t.Error(err)
			}
			quality <- m.Quality
		}()
		synctest.Wait()
		if q := b.Router.Quality(); q != feed.Exact {
			t.Fatalf("quality %s before the end of the wait", q)
		}
		b.Transport.Send(source.Frame{Kind: source.FrameDisconnected})
		b.Pass(time.Second)
		b.Route(h, "r1", `{"method":"mark_free"}`)
		if q := <-quality; q != feed.Degraded {
			t.Errorf("quality %s of a decision made while disconnected", q)
		}
	})
}
