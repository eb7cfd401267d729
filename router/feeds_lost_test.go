package router_test

import (
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// expectNoLies checks that the index has all that workers said to be exact hold, and
// reports how many are not.
func expectNoLies(b *routertest.Bench, when string, publishers ...*sourcetest.Publisher) (degraded int) {
	b.T.Helper()
	for _, w := range b.Router.Workers() {
		if w.Quality != feed.Exact {
			degraded++
			continue
		}
		at := slices.IndexFunc(publishers, func(p *sourcetest.Publisher) bool { return p.Meta.Owner == kv.WorkerOwner(w.Worker) })
		kept, held := 0, publishers[at].Blocks()
		b.Model().Index().DumpOwner(kv.WorkerOwner(w.Worker), func(e *kvevent.RouterEvent) bool {
			kept += len(e.Blocks)
			return true
		})
		if kept != held {
			b.T.Errorf("%s: worker %s is said to be exact with %d of its %d blocks", when, w.Worker, kept, held)
		}
	}
	if want := feed.Exact; degraded == 0 && b.Router.Quality() != want {
		b.T.Errorf("%s: quality %s, want %s as of all workers", when, b.Router.Quality(), want)
	}
	if want := feed.Degraded; degraded > 0 && b.Router.Quality() != want {
		b.T.Errorf("%s: quality %s, want %s as of %d workers", when, b.Router.Quality(), want, degraded)
	}
	return degraded
}

// TestWorkersWhoseBlocksDoNotFitAreDegraded: a worker is exact only while the index
// keeps all that it holds, whether its own blocks had no room or others' took the
// room; nobody is asked for what would not fit again; and who lets go of its blocks
// is exact again.
func TestWorkersWhoseBlocksDoNotFitAreDegraded(t *testing.T) {
	small := routertest.Configured(func(c *config.Config) { c.IndexMemoryBytes = 1 << 20 })
	routertest.OnBench(t, router.Options{Config: small}, func(b *routertest.Bench) {
		one, two := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0)
		b.Send(one.Announce(), two.Announce())
		fill := func(p *sourcetest.Publisher, from, prompts int) {
			for n := range prompts {
				var ids []uint32
				for i := range 100 {
					ids = append(ids, uint32(from+n*100+i))
				}
				b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(ids...)))
			}
		}
		fill(one, 0, 20)
		b.Send(one.Announce(), two.Announce())
		if n := expectNoLies(b, "with room", one, two); n != 0 {
			t.Fatalf("%d workers are degraded with room for all", n)
		}
		fill(two, 1<<20, 1000)
		for range 3 {
			b.Send(one.Announce(), two.Announce())
			b.Pass(time.Second)
		}
		if n := expectNoLies(b, "without room", one, two); n == 0 {
			t.Error("100,000 blocks in 1 MiB leave every worker exact")
		}
		for _, f := range b.Router.Feeds() {
			if short := f.Lost > 0; short == f.DigestOK || short == (f.Health == kvevent.HealthExact) {
				t.Errorf("feed %+v, want what is lost to show", f)
			}
		}
		if asked := b.Transport.Asked(); len(asked) != 0 {
			t.Errorf("asked %v, want nothing asked for that would not fit", asked)
		}
		b.Send(one.Clear(), two.Clear(), one.Announce(), two.Announce())
		if n := expectNoLies(b, "after they let go", one, two); n != 0 {
			t.Errorf("%d workers are degraded that hold nothing", n)
		}
	})
}

// TestWhatWasLostComesBackWhenThereIsRoom: a worker whose blocks had to give way is asked
// for them once others have let go of theirs, once, and no more while nothing is lost.
func TestWhatWasLostComesBackWhenThereIsRoom(t *testing.T) {
	small := routertest.Configured(func(c *config.Config) { c.IndexMemoryBytes, c.FirstOfEqual = 1<<20, true })
	routertest.OnBench(t, router.Options{Config: small}, func(b *routertest.Bench) {
		one, two := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0)
		prompt := func(from int) []uint32 {
			ids := make([]uint32, 100)
			for i := range ids {
				ids[i] = uint32(from + i)
			}
			return sourcetest.Tokens(ids...)
		}
		b.Send(one.Announce(), two.Announce(), one.Store(kv.TierDevice, prompt(0)), one.Announce())
		for n := range 1000 {
			b.Send(two.Store(kv.TierDevice, prompt(1<<20+n*100)))
		}
		b.Every(30, one, two)
		if asked := b.Transport.Asked(); len(asked) != 0 || expectNoLies(b, "without room", one, two) != 2 {
			t.Fatalf("asked %v; want two degraded workers and nothing asked for", asked)
		}
		b.Send(two.Clear())
		b.Every(5, one, two)
		b.Expect("with room again", prompt(0), 1, 100, feed.Exact)
		b.Every(120, one, two)
		if asked := b.Transport.Asked(); len(asked) != 1 {
			t.Errorf("asked %v, want one question", asked)
		}
		if s := b.Router.Stats(); s.Feeds.Refills != 1 || s.Index.LostNow != 0 {
			t.Errorf("stats %+v, want one refill and nothing lost", s)
		}
	})
}
