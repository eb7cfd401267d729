package router_test

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestAStreamResurrectsNobody: a router that reads the stream on finds announcements of a
// worker that died while the router was down. It is no candidate then, and one that died
// a moment ago is one for no longer than its silence allows.
func TestAStreamResurrectsNobody(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		dead, dying, live := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0), b.Publisher(13, sourcetest.WorkerOwner(3), 0)
		aged := func(p *sourcetest.Publisher, age time.Duration) source.Frame {
			f := p.Announce()
			f.Age = age
			return f
		}
		b.Send(source.Frame{Kind: source.FrameDisconnected})
		b.Send(aged(dead, time.Minute), aged(live, time.Minute), aged(dead, 20*time.Second), aged(dying, 10*time.Second), aged(live, time.Second))
		b.ExpectWorkers("while the stream is read", "2/0 agent, 3/0 agent")
		b.Send(source.Frame{Kind: source.FrameConnected})
		b.ExpectWorkers("at its end", "2/0 agent, 3/0 agent")
		if s := b.Router.Stats().Feeds; s.Outdated != 3 {
			t.Errorf("%d announcements were outdated, want 3", s.Outdated)
		}
		b.Every(6, live)
		b.ExpectWorkers("six seconds later", "3/0 agent")
	})
}
