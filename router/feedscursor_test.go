package router

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestACursorAheadOfItsPublisherIsRepaired: an answer that claimed too much hides
// every later event; announcements that stay behind the cursor show it.
func TestACursorAheadOfItsPublisherIsRepaired(t *testing.T) {
	OnBench(t, Options{}, func(b *Bench) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce())
		b.Pass(time.Second)
		b.Router.feeds.mu.Lock()
		b.Router.feeds.feeds[11].cursor = 1000
		b.Router.feeds.mu.Unlock()
		for i := range uint32(5) {
			b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(i)))
		}
		for range 3 {
			b.Send(p.Announce())
			b.Pass(time.Second)
		}
		b.Send(p.Announce())
		i := b.Router.Feeds()[0]
		if i.Cursor != 5 || i.Health != kvevent.HealthExact || i.Counters.DivergencesRepaired != 1 {
			t.Errorf("feed %+v, want it repaired", i)
		}
		b.Expect("repaired", sourcetest.Tokens(4), 1, 1, QualityExact)
		if asked := b.Transport.Asked(); len(asked) != 1 {
			t.Errorf("asked %v, want one question", asked)
		}
	})
}
