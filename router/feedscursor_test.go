package router

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestACursorAheadOfItsPublisherIsRepaired: an answer that claimed too much hides
// every later event; announcements that stay behind the cursor show it.
func TestACursorAheadOfItsPublisherIsRepaired(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		p := b.publisher(11, workerOwner(1), 0)
		b.send(p.announce())
		b.pass(time.Second)
		b.router.feeds.mu.Lock()
		b.router.feeds.feeds[11].cursor = 1000
		b.router.feeds.mu.Unlock()
		for i := range uint32(5) {
			b.send(p.store(kv.TierDevice, promptTokens(i)))
		}
		for range 3 {
			b.send(p.announce())
			b.pass(time.Second)
		}
		b.send(p.announce())
		i := b.router.Feeds()[0]
		if i.Cursor != 5 || i.Health != kvevent.HealthExact || i.Counters.DivergencesRepaired != 1 {
			t.Errorf("feed %+v, want it repaired", i)
		}
		b.expect("repaired", promptTokens(4), 1, 1, QualityExact)
		if asked := b.transport.asked(); len(asked) != 1 {
			t.Errorf("asked %v, want one question", asked)
		}
	})
}
