package feed

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// recounted is the view of all feeds of a model, looked at one by one.
func recounted(s *Set, m *modelFeeds) View {
	v := View{Quality: Exact}
	told, pairs := false, 0
	for o, f := range s.byOwner {
		if o.Kind != kv.OwnerWorker || f.model != m {
			continue
		}
		v.Workers++
		if !source.IsRegistered(&f.announcement) {
			v.Published++
		}
		if f.announcement.Card.Eagle {
			pairs++
		}
		told = told || f.everComplete && !f.announcement.Card.Silent
		exact := s.exactLocked(f)
		if id := f.announcement.Pool; id != 0 {
			pool := s.byOwner[kv.PoolOwner(id)]
			ours := pool != nil && pool.model == m
			told = told || ours && pool.everComplete && !pool.announcement.Card.Silent
			exact = exact && ours && s.exactLocked(pool)
		}
		if !exact {
			v.Quality = Degraded
		}
	}
	v.Pairs = 2*pairs > v.Workers
	if !told {
		v.Quality = Fallback
	}
	return v
}

// TestTheViewEqualsARecount: whatever feeds go through, the view that is kept up to
// date with each change is that of all of them together; and nothing of them is left
// in it when they are gone.
func TestTheViewEqualsARecount(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		set := freshFeeds(outer)
		now := time.Unix(1000, 0)
		check := func() {
			t.Helper()
			for _, m := range set.models {
				if got, want := m.Model.(*testModel).view, recounted(set, m); got != want {
					t.Fatalf("%s: view %+v, want %+v of tally %+v", m.key, got, want, m.tally)
				}
			}
		}
		publisher := rapid.Uint64Range(1, 6)
		var due []Query
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { check() },
			"announce": func(t *rapid.T) {
				set.mu.Lock()
				defer set.mu.Unlock()
				a := drawnAnnouncement(t, publisher.Draw(t, "publisher"))
				set.handleAnnouncementLocked(&a, rapid.IntRange(0, 1).Draw(t, "source"), now)
			},
			"event": func(t *rapid.T) {
				set.mu.Lock()
				defer set.mu.Unlock()
				id := publisher.Draw(t, "publisher")
				e := kvevent.RouterEvent{Kind: kvevent.Cleared, ID: rapid.Uint64Range(1, 4).Draw(t, "event")}
				if f := set.feeds[id]; f != nil {
					e.Owner = f.owner()
				}
				set.envelope = kvevent.Envelope{PublisherID: id, Events: []kvevent.RouterEvent{e}}
				set.handleEventsLocked(now)
			},
			"answer": func(t *rapid.T) {
				if len(due) == 0 {
					return
				}
				q := due[0]
				last := rapid.Uint64Range(0, 4).Draw(t, "last")
				due = append(due[1:], set.Answered(&q, &source.Answer{Kind: kvevent.QueryTreeDump, LastEventID: last}, nil, now)...)
			},
			"connection": func(t *rapid.T) {
				kind := rapid.SampledFrom([]source.FrameKind{source.FrameConnected, source.FrameDisconnected}).Draw(t, "kind")
				set.Frame(source.Frame{Kind: kind, Source: rapid.IntRange(0, 1).Draw(t, "source")}, now)
			},
			"time": func(t *rapid.T) {
				var more []Query
				now, more = set.runFor(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds"))*time.Second, now)
				due = append(due, more...)
			},
		})
		for id := range 2 {
			set.Frame(source.Frame{Kind: source.FrameConnected, Source: id}, now)
		}
		models := slices.Collect(maps.Values(set.models)) // a model without feeds is retired
		set.runFor(time.Minute, now)
		check()
		for _, m := range models {
			if s := &m.tally; s.workers != 0 || s.published != 0 || s.hashesPairs != 0 || s.incomplete != 0 || s.everComplete != 0 || len(s.pools) != 0 || m.feeds != 0 {
				t.Fatalf("%s: %d feeds, left of those that are gone: %+v", m.key, m.feeds, *s)
			}
		}
	})
}

// drawnAnnouncement is one of a few owners, mostly in agreement with the others.
func drawnAnnouncement(t *rapid.T, publisher uint64) kvevent.Announcement {
	a := kvevent.Announcement{
		PublisherID: publisher, Owner: kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(rapid.Uint64Range(1, 4).Draw(t, "worker"))}),
		Model: "m", BlockSize: 16, Health: kvevent.HealthExact, LastEventID: rapid.Uint64Range(0, 4).Draw(t, "last"),
	}
	switch rapid.IntRange(0, 9).Draw(t, "peculiarity") {
	case 0:
		a.Health = kvevent.HealthGone
	case 1:
		a.Health = kvevent.HealthDegraded
	case 2:
		a.Digest, a.Blocks = 1, 1
	case 3:
		a.Model = "other"
	case 4:
		a.BlockSize = 32
	case 5:
		a.Card.Silent, a.Card.Source, a.Card.Eagle = true, "file", true
	case 6, 7:
		a.Owner = kv.PoolOwner(rapid.Uint64Range(1, 2).Draw(t, "pool"))
		return a
	}
	a.Pool = rapid.Uint64Range(0, 2).Draw(t, "pool")
	return a
}

// BenchmarkAnnouncementsThatChangeTheView: a worker that lacks something and then
// nothing any more, among others.
func BenchmarkAnnouncementsThatChangeTheView(b *testing.B) {
	for _, workers := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			set := freshFeeds(b)
			set.maxFeeds = workers
			now := time.Unix(1000, 0)
			var a kvevent.Announcement
			for i := range workers {
				a = kvevent.Announcement{PublisherID: uint64(i + 1), Owner: kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(i + 1)}),
					Model: "m", BlockSize: 16, Health: kvevent.HealthExact}
				set.handleAnnouncementLocked(&a, 0, now)
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, health := range []kvevent.Health{kvevent.HealthDegraded, kvevent.HealthExact} {
					a.Health = health
					set.handleAnnouncementLocked(&a, 0, now)
				}
			}
		})
	}
}
