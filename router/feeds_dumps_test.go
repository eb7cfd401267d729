package router_test

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestLargeDumpsAreNotAskedForAllAtOnce: a router that joins late asks for as much at a
// time as the announcements let it, and gets to everybody.
func TestLargeDumpsAreNotAskedForAllAtOnce(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		b.Transport.HoldQueries(true)
		var all []*sourcetest.Publisher
		for i := range uint64(12) {
			p := b.Publisher(100+i, sourcetest.WorkerOwner(i+1), 0)
			p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1), 0)
			all = append(all, p)
			a := p.Meta
			// What is promised is far more than the test's publishers have.
			a.LastEventID, a.Blocks, a.Digest = 1, 400_000, 1
			if i >= 8 {
				a.Blocks = 20_000
			}
			b.Send(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)})
		}
		b.Pass(time.Second)
		if most := b.Transport.MostInFlight(); most != 2+4 {
			t.Errorf("%d questions at once, want %d for large dumps and 4 for small ones", most, 2)
		}
		b.Transport.HoldQueries(false)
		b.Pass(time.Second)
		for _, p := range all {
			b.Send(p.Announce())
		}
		if got := b.Router.Stats().Feeds.ExactFeeds; got != len(all) {
			t.Errorf("%d of %d feeds are exact", got, len(all))
		}
	})
}
