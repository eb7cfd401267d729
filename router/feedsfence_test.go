package router

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestAZombieDoesNotFenceTheLivePublisher: whoever was followed by another one comes back
// for a moment and ends. The live publisher is followed, before, meanwhile and after.
func TestAZombieDoesNotFenceTheLivePublisher(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		zombie, live := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(1), 0)
		b.send(zombie.announce())
		b.every(60, live)
		b.send(live.store(kv.TierDevice, promptTokens(1)), live.announce())
		b.send(zombie.announce()) // the partition heals
		b.expect("two speak", promptTokens(1), 1, 1, QualityDegraded)
		b.send(live.announce(), zombie.goodbye())
		b.expect("the zombie has gone", promptTokens(1), 1, 1, QualityExact)
		b.every(300, live)
		b.expect("five minutes later", promptTokens(1), 1, 1, QualityExact)
		if s := b.router.Stats().Feeds; s.Contests != 1 || s.Ambiguous != 0 || s.Dumps != 0 {
			t.Errorf("stats %+v, want one contest that is over", s)
		}
	})
}

// TestAPublisherThatFellSilentIsNoNewcomer: one that was forgotten for its silence does
// not take the place of the one that came after it.
func TestAPublisherThatFellSilentIsNoNewcomer(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		zombie, live := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(1), 0)
		b.send(zombie.announce())
		b.pass(20 * time.Second)
		b.send(live.announce(), live.store(kv.TierDevice, promptTokens(1)))
		b.every(20, live)
		b.send(zombie.announce())
		b.expect("the zombie is back", promptTokens(1), 1, 1, QualityDegraded)
		b.every(20, live)
		b.expect("and silent", promptTokens(1), 1, 1, QualityExact)
	})
}

// TestTheLivePublisherIsFollowedAfterTheOneThatDied: a router that hears of the dying
// publisher last follows it, until it says goodbye or falls silent.
func TestTheLivePublisherIsFollowedAfterTheOneThatDied(t *testing.T) {
	for _, goodbye := range []bool{true, false} {
		onBench(t, Options{}, func(b *bench) {
			old, live := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(1), 0)
			live.store(kv.TierDevice, promptTokens(1))
			b.send(live.announce(), old.announce())
			if goodbye {
				b.send(old.goodbye(), live.announce())
			} else {
				b.every(7, live)
			}
			b.expect("the live one", promptTokens(1), 1, 1, QualityExact)
			b.every(60, live)
			b.expect("a minute later", promptTokens(1), 1, 1, QualityExact)
		})
	}
}

// TestTwoPublishersOfOneOwnerAreReported: two nodes with one name. The owner is degraded
// and both publishers are named, in the log, in the feeds and by a gauge, as long as both
// live; the router does not change between them.
func TestTwoPublishersOfOneOwnerAreReported(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	onBench(t, Options{Log: zap.New(core)}, func(b *bench) {
		pool := kv.PoolOwner(42)
		worker := b.publisher(20, workerOwner(1), 42)
		one, two := b.publisher(11, pool, 0), b.publisher(12, pool, 0)
		one.store(kv.TierHost, promptTokens(1))
		two.store(kv.TierHost, promptTokens(2))
		b.every(30, worker, one, two)
		if m := b.best(promptTokens(2)); m.Quality != QualityDegraded || m.Hits[kv.TierHost] != 1 {
			t.Errorf("%d hits, %s; want those of the pool that was heard of last, degraded", m.Hits[kv.TierHost], m.Quality)
		}
		s := b.router.Stats().Feeds
		if s.Ambiguous != 1 || s.Contests != 1 || s.Dumps+s.Gaps > 2 {
			t.Errorf("stats %+v, want one ambiguous owner", s)
		}
		for _, f := range b.router.Feeds() {
			if f.Owner == pool && (f.PublisherID != 12 || f.Rival != 11 || f.Health != kvevent.HealthDegraded) {
				t.Errorf("feed %+v, want publisher 12 with rival 11", f)
			}
		}
		warnings := logs.FilterMessageSnippet("two publishers").All()
		if len(warnings) != 1 || !strings.Contains(logContext(warnings[0]), "000000000000000b") || !strings.Contains(logContext(warnings[0]), "000000000000000c") {
			t.Errorf("warnings %v, want one that names both", warnings)
		}
		b.every(20, worker, one)
		if m := b.best(promptTokens(1)); m.Quality != QualityExact || m.Hits[kv.TierHost] != 1 {
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
	onBench(t, Options{}, func(b *bench) {
		old, live := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(1), 0)
		b.send(old.announce())
		b.every(10, live)
		b.send(Frame{Kind: FrameDisconnected}, old.announce(), old.announce(), live.announce(), Frame{Kind: FrameConnected})
		b.every(2, live)
		if s := b.router.Stats().Feeds; s.Contests != 0 || s.Fenced != 2 || s.ExactFeeds != 1 {
			t.Errorf("stats %+v, want no contest", s)
		}
	})
}

// TestARegistrationContestsNothing: a publisher that was silent for a while takes its
// owner back from the registration that spoke for it meanwhile.
func TestARegistrationContestsNothing(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, r *Registry) {
		if err := r.Register(someWorker(1), time.Hour); err != nil {
			t.Fatal(err)
		}
		p := b.publisher(11, workerOwner(1), 0)
		b.every(5, p)
		b.expectWorkers("a publisher", "1/0 agent")
		b.pass(30 * time.Second)
		b.expectWorkers("it is silent", "1/0 http")
		b.every(10, p)
		b.expectWorkers("it is back", "1/0 agent")
		if s := b.router.Stats().Feeds; s.Contests != 0 || s.ExactFeeds != 1 {
			t.Errorf("stats %+v, want no contest", s)
		}
	})
}

// TestFencedPublishersAreBounded: many are forgotten, and counted, when there are more.
func TestFencedPublishersAreBounded(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		s := b.router.feeds
		now := time.Now()
		for i := range uint64(maxFenced + 3) {
			s.fenceLocked(&kvevent.Announcement{PublisherID: i + 1, Owner: workerOwner(1)}, now, i%2 == 0)
		}
		if len(s.fenced) != maxFenced || s.counters.Unfenced != 3 {
			t.Errorf("%d are fenced and %d forgotten, want %d and 3", len(s.fenced), s.counters.Unfenced, maxFenced)
		}
		s.sweepFencedLocked(now.Add(keepFenced))
		for _, p := range s.fenced {
			if p.gone {
				t.Fatal("one that has said goodbye is still remembered")
			}
		}
		if s.sweepFencedLocked(now.Add(keepFenced + 1)); len(s.fenced) != 0 {
			t.Errorf("%d are still fenced", len(s.fenced))
		}
	})
}
