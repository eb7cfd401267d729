package router_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestAZombieDoesNotFenceTheLivePublisher: whoever was followed by another one comes back
// for a moment and ends. The live publisher is followed, before, meanwhile and after.
func TestAZombieDoesNotFenceTheLivePublisher(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		zombie, live := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(1), 0)
		b.Send(zombie.Announce())
		b.Every(60, live)
		b.Send(live.Store(kv.TierDevice, sourcetest.Tokens(1)), live.Announce())
		b.Send(zombie.Announce()) // the partition heals
		b.Expect("two speak", sourcetest.Tokens(1), 1, 1, feed.Degraded)
		b.Send(live.Announce(), zombie.Goodbye())
		b.Expect("the zombie has gone", sourcetest.Tokens(1), 1, 1, feed.Exact)
		b.Every(300, live)
		b.Expect("five minutes later", sourcetest.Tokens(1), 1, 1, feed.Exact)
		if s := b.Router.Stats().Feeds; s.Contests != 1 || s.Ambiguous != 0 || s.Dumps != 0 {
			t.Errorf("stats %+v, want one contest that is over", s)
		}
	})
}

// TestAPublisherThatFellSilentIsNoNewcomer: one that was forgotten for its silence does
// not take the place of the one that came after it.
func TestAPublisherThatFellSilentIsNoNewcomer(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		zombie, live := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(1), 0)
		b.Send(zombie.Announce())
		b.Pass(20 * time.Second)
		b.Send(live.Announce(), live.Store(kv.TierDevice, sourcetest.Tokens(1)))
		b.Every(20, live)
		b.Send(zombie.Announce())
		b.Expect("the zombie is back", sourcetest.Tokens(1), 1, 1, feed.Degraded)
		b.Every(20, live)
		b.Expect("and silent", sourcetest.Tokens(1), 1, 1, feed.Exact)
	})
}

// TestTheLivePublisherIsFollowedAfterTheOneThatDied: a router that hears of the dying
// publisher last follows it, until it says goodbye or falls silent.
func TestTheLivePublisherIsFollowedAfterTheOneThatDied(t *testing.T) {
	for _, goodbye := range []bool{true, false} {
		routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
			old, live := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(1), 0)
			live.Store(kv.TierDevice, sourcetest.Tokens(1))
			b.Send(live.Announce(), old.Announce())
			if goodbye {
				b.Send(old.Goodbye(), live.Announce())
			} else {
				b.Every(7, live)
			}
			b.Expect("the live one", sourcetest.Tokens(1), 1, 1, feed.Exact)
			b.Every(60, live)
			b.Expect("a minute later", sourcetest.Tokens(1), 1, 1, feed.Exact)
		})
	}
}

// TestTwoPublishersOfOneOwnerAreReported: two nodes with one name. The owner is degraded
// and both publishers are named, in the log, in the feeds and by a gauge, as long as both
// live; the router does not change between them.
func TestTwoPublishersOfOneOwnerAreReported(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	routertest.OnBench(t, router.Options{Log: zap.New(core)}, func(b *routertest.Bench) {
		pool := kv.PoolOwner(42)
		worker := b.Publisher(20, sourcetest.WorkerOwner(1), 42)
		one, two := b.Publisher(11, pool, 0), b.Publisher(12, pool, 0)
		one.Store(kv.TierHost, sourcetest.Tokens(1))
		two.Store(kv.TierHost, sourcetest.Tokens(2))
		b.Every(30, worker, one, two)
		if m := b.Best(sourcetest.Tokens(2)); m.Quality != feed.Degraded || m.Hits[kv.TierHost] != 1 {
			t.Errorf("%d hits, %s; want those of the pool that was heard of last, degraded", m.Hits[kv.TierHost], m.Quality)
		}
		s := b.Router.Stats().Feeds
		if s.Ambiguous != 1 || s.Contests != 1 || s.Dumps+s.Gaps > 2 {
			t.Errorf("stats %+v, want one ambiguous owner", s)
		}
		for _, f := range b.Router.Feeds() {
			if f.Owner == pool && (f.PublisherID != 12 || f.Rival != 11 || f.Health != kvevent.HealthDegraded) {
				t.Errorf("feed %+v, want publisher 12 with rival 11", f)
			}
		}
		warnings := logs.FilterMessageSnippet("two publishers").All()
		if len(warnings) != 1 || !strings.Contains(logContext(warnings[0]), "000000000000000b") || !strings.Contains(logContext(warnings[0]), "000000000000000c") {
			t.Errorf("warnings %v, want one that names both", warnings)
		}
		b.Every(20, worker, one)
		if m := b.Best(sourcetest.Tokens(1)); m.Quality != feed.Exact || m.Hits[kv.TierHost] != 1 {
			t.Errorf("%d hits, %s; want the pool that lives", m.Hits[kv.TierHost], m.Quality)
		}
	})
}

// logContext is the fields of an entry as text.
func logContext(e observer.LoggedEntry) string {
	var b strings.Builder
	for _, v := range e.ContextMap() {
		b.WriteString(" ")
		if s, ok := v.(string); ok {
			b.WriteString(s)
		}
	}
	return b.String()
}

// TestOldAnnouncementsContestNothing: a stream that is read again has announcements of
// publishers that ended long ago.
func TestOldAnnouncementsContestNothing(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		old, live := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(1), 0)
		b.Send(old.Announce())
		b.Every(10, live)
		b.Send(source.Frame{Kind: source.FrameDisconnected}, old.Announce(), old.Announce(), live.Announce(), source.Frame{Kind: source.FrameConnected})
		b.Every(2, live)
		if s := b.Router.Stats().Feeds; s.Contests != 0 || s.Fenced != 2 || s.ExactFeeds != 1 {
			t.Errorf("stats %+v, want no contest", s)
		}
	})
}

// TestARegistrationContestsNothing: a publisher that was silent for a while takes its
// owner back from the registration that spoke for it meanwhile.
func TestARegistrationContestsNothing(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		if err := r.Register(routertest.SomeWorker(1), time.Hour); err != nil {
			t.Fatal(err)
		}
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		b.Every(5, p)
		b.ExpectWorkers("a publisher", "1/0 agent")
		b.Pass(30 * time.Second)
		b.ExpectWorkers("it is silent", "1/0 http")
		b.Every(10, p)
		b.ExpectWorkers("it is back", "1/0 agent")
		if s := b.Router.Stats().Feeds; s.Contests != 0 || s.ExactFeeds != 1 {
			t.Errorf("stats %+v, want no contest", s)
		}
	})
}
