package router_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

func TestWorkersComeByAnnouncementAndWinByTheirBlocks(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: []uint32{1}}); !errors.Is(err, router.ErrNoWorkers) {
			t.Errorf("without workers: %v", err)
		}
		if err := b.Router.Ready(); !errors.Is(err, router.ErrNoWorkers) {
			t.Errorf("ready without workers: %v", err)
		}
		p1, p2 := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0)
		b.Send(p1.Announce(), p2.Announce())
		b.Send(p2.Store(kv.TierDevice, sourcetest.Tokens(1, 2, 3)))
		b.Expect("a cached prefix", sourcetest.Tokens(1, 2, 9), 2, 2, feed.Exact)
		b.Send(source.Frame{Kind: source.FrameEvents, Data: p2.Add(kvevent.Removed, kv.TierDevice, sourcetest.Tokens(1, 2, 3), 1)})
		b.Send(p1.Store(kv.TierDevice, sourcetest.Tokens(1, 2)))
		b.Expect("the other one has more now", sourcetest.Tokens(1, 2, 9), 1, 2, feed.Exact)
		if err := b.Router.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: []uint32{1}, UpdateStates: true}); !errors.Is(err, router.ErrNoRequestID) {
			t.Errorf("states without an id: %v", err)
		}
	})
}

func TestPoolBlocksCountForEveryMember(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		p1, p2 := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 77)
		pool := b.Publisher(13, kv.PoolOwner(77), 0)
		b.Send(p1.Announce(), p2.Announce())
		b.Expect("a pool that nobody speaks for", sourcetest.Tokens(1, 2), 1, 0, feed.Degraded)
		b.Send(pool.Announce(), pool.Store(kv.TierHost, sourcetest.Tokens(1, 2)), pool.Store(kv.TierDisk, sourcetest.Tokens(1, 2, 3)))
		m := b.Best(sourcetest.Tokens(1, 2, 3, 4))
		if m.Worker.ID != 2 || m.Hits[kv.TierHost] != 2 || m.Hits[kv.TierDisk] != 1 || m.Quality != feed.Exact {
			t.Errorf("match %+v, want worker 2 with 2 host and 1 disk blocks, exact", m)
		}
		if want := 2*0.75 + 0.25; m.Effective != want || m.CachedTokens != 7 {
			t.Errorf("effective overlap %v, %d tokens; want %v, 7", m.Effective, m.CachedTokens, want)
		}
		p1.Meta.Pool = 77
		b.Send(p1.Announce())
		if m := b.Best(sourcetest.Tokens(1, 2, 3)); m.Worker.ID != 1 || m.Hits[kv.TierHost] != 2 {
			t.Errorf("match %+v, want the new member to have the pool's blocks", m)
		}
		b.Send(pool.Goodbye())
		b.Expect("without the pool", sourcetest.Tokens(1, 2, 3), 1, 0, feed.Degraded)
	})
}

func TestLateRouterAsksForEverythingFirst(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		for i := range uint32(5) {
			p.Store(kv.TierDevice, sourcetest.Tokens(1, 2, 10+i))
		}
		b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(1, 2, 20))) // before its announcement
		b.Transport.HoldQueries(true)
		b.Send(p.Announce())
		b.Expect("while the answer is awaited", sourcetest.Tokens(1, 2, 20), 1, 0, feed.Fallback)
		b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(1, 2, 30)))
		b.Transport.HoldQueries(false)
		b.Pass(0)
		b.Expect("after the answer", sourcetest.Tokens(1, 2, 30), 1, 3, feed.Exact)
		b.Expect("after the answer", sourcetest.Tokens(1, 2, 20), 1, 3, feed.Exact)
		if got := b.Transport.Asked(); len(got) != 1 || got[0] != "11 from 0" {
			t.Errorf("queries %v, want one for everything", got)
		}
		s := b.Router.Stats()
		if s.Feeds.Unannounced != 1 || s.Feeds.Gaps != 0 || s.Feeds.Dumps != 1 {
			t.Errorf("stats %+v", s.Feeds)
		}
	})
}

func TestLostMessagesAreRepairedAndSaidSo(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce(), p.Store(kv.TierDevice, sourcetest.Tokens(1)))
		p.Store(kv.TierDevice, sourcetest.Tokens(1, 2)) // lost
		b.Transport.FailQueries(errors.New("publisher is busy"))
		b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(1, 2, 3)))
		b.Expect("in the gap", sourcetest.Tokens(1, 2, 3), 1, 1, feed.Degraded)
		if f := b.Router.Feeds()[0]; f.Health != kvevent.HealthDegraded || f.Cursor != 1 || f.Counters.Gaps != 1 {
			t.Errorf("feed %+v, want it degraded at event 1", f)
		}
		b.Pass(time.Second)
		if got := len(b.Transport.Asked()); got < 2 || got > 4 {
			t.Errorf("%d queries in a second, want a few with growing pauses", got)
		}
		b.Transport.FailQueries(nil)
		b.Pass(5 * time.Second)
		b.Expect("repaired", sourcetest.Tokens(1, 2, 3), 1, 3, feed.Exact)
		// The last message of a burst is lost: the heartbeat finds it.
		p.Store(kv.TierDevice, sourcetest.Tokens(7))
		b.Send(p.Announce())
		b.Expect("repaired again", sourcetest.Tokens(7), 1, 1, feed.Exact)
		// The publisher changes its mind about what it holds.
		p.Drift(4711)
		b.Send(p.Announce())
		b.Pass(time.Second)
		b.Send(p.Announce())
		f := b.Router.Feeds()[0]
		if f.Counters.Gaps != 2 || f.Counters.GapsRepaired != 2 || f.Counters.DivergencesRepaired != 1 || !f.DigestOK {
			t.Errorf("feed %+v, want two gaps and one difference repaired", f)
		}
		if sum, pairs := b.Model().Index().Digest(sourcetest.WorkerOwner(1)); pairs != 5 || sum == 0 {
			t.Errorf("%d blocks, want 5", pairs)
		}
	})
}

func TestNewPublisherOfAnOwnerIsANewEpoch(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		old := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		old.Meta.Card.Incarnation = 1
		b.Send(old.Announce(), old.Store(kv.TierDevice, sourcetest.Tokens(1, 2)))
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{ID: "r", Tokens: sourcetest.Tokens(1), UpdateStates: true}); err != nil {
			t.Fatal(err)
		}
		fresh := b.Publisher(12, sourcetest.WorkerOwner(1), 0)
		fresh.Meta.Card.Incarnation = 2
		b.Send(fresh.Announce())
		b.Expect("a restarted engine", sourcetest.Tokens(1, 2), 1, 0, feed.Exact)
		if got := b.Router.Stats().Requests.Load; got.Requests != 0 || got.Abandoned != 1 {
			t.Errorf("requests %+v, want the old engine's abandoned", got)
		}
		b.Send(old.Announce(), old.Store(kv.TierDevice, sourcetest.Tokens(1, 2)), old.Goodbye())
		b.Expect("its former publisher is over", sourcetest.Tokens(1, 2), 1, 0, feed.Exact)
		if got := b.Router.Stats().Feeds; got.Fenced != 2 || got.Unannounced != 1 || got.Feeds != 1 {
			t.Errorf("stats %+v, want the former publisher fenced", got)
		}
		b.Send(fresh.Store(kv.TierDevice, sourcetest.Tokens(5)))
		b.Expect("the new one", sourcetest.Tokens(5), 1, 1, feed.Exact)
	})
}

func TestSilentOwnersAreForgotten(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		p1, p2 := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0)
		b.Send(p1.Announce(), p2.Announce(), p1.Store(kv.TierDevice, sourcetest.Tokens(1)), p2.Store(kv.TierDevice, sourcetest.Tokens(1)))
		for range 20 {
			b.Pass(time.Second)
			b.Send(p2.Announce())
		}
		b.Expect("the one that still speaks", sourcetest.Tokens(1), 2, 1, feed.Exact)
		if got := b.Router.Stats(); got.Workers != 1 || got.Feeds.Expired != 1 || got.Index.Memberships != 1 {
			t.Errorf("stats %+v, want one worker left", got)
		}
		// It comes back by itself, without a new publisher id.
		b.Send(p1.Announce())
		if got := b.Router.Stats(); got.Workers != 2 || got.Index.Memberships != 2 {
			t.Errorf("stats %+v, want both workers", got)
		}
		// A disconnected router knows nothing of anybody's silence.
		b.Send(source.Frame{Kind: source.FrameDisconnected})
		b.Pass(time.Hour)
		b.Expect("offline", sourcetest.Tokens(1), 1, 1, feed.Degraded)
		b.Send(source.Frame{Kind: source.FrameConnected})
		b.Pass(10 * time.Second)
		b.Send(p2.Announce())
		b.Pass(6 * time.Second)
		if got := b.Router.Stats(); got.Workers != 1 || got.Feeds.Expired != 2 {
			t.Errorf("stats %+v, want the silent one forgotten", got)
		}
		b.Send(p2.Goodbye())
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: []uint32{1}}); !errors.Is(err, router.ErrNoWorkers) {
			t.Errorf("after the last goodbye: %v", err)
		}
		b.Send(p2.Announce())
		if got := b.Router.Stats(); got.Workers != 0 || got.Feeds.Fenced != 1 || got.Feeds.Gone != 1 {
			t.Errorf("stats %+v, want a late heartbeat ignored", got)
		}
		// Much later the id is an id like any other.
		b.Pass(time.Hour)
		b.Send(p2.Announce())
		if got := b.Router.Stats().Workers; got != 1 {
			t.Errorf("%d workers, want 1", got)
		}
	})
}

func TestPublishersThatDoNotFitAreRefused(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	routertest.OnBench(t, router.Options{MaxFeeds: 2, Log: zap.New(core)}, func(b *routertest.Bench) {
		good := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		b.Send(good.Announce())
		none, zero := b.Publisher(14, sourcetest.WorkerOwner(4), 0), b.Publisher(15, sourcetest.WorkerOwner(0), 0)
		none.Meta.BlockSize = 0
		for range 3 {
			b.Send(none.Announce(), zero.Announce())
		}
		if got := b.Router.Stats(); got.Workers != 1 || got.Feeds.Refused != 2 {
			t.Errorf("stats %+v, want one worker and two refused", got)
		}
		if logs.Len() != 2 {
			t.Errorf("%d lines were logged, want one for each refused publisher: %v", logs.Len(), logs.All())
		}
		b.Send(b.Publisher(16, sourcetest.WorkerOwner(6), 0).Announce(), b.Publisher(17, sourcetest.WorkerOwner(7), 0).Announce())
		if got := b.Router.Stats(); got.Workers != 2 || got.Feeds.Refused != 3 {
			t.Errorf("stats %+v, want the third worker of two refused", got)
		}
		// A publisher that changes its mind ends what it had.
		good.Meta.BlockSize = 0
		b.Send(good.Announce())
		if got := b.Router.Stats(); got.Workers != 1 || got.Feeds.Refused != 4 {
			t.Errorf("stats %+v, want the worker gone", got)
		}
		b.Send(source.Frame{Kind: source.FrameAnnouncement, Data: []byte("x")}, source.Frame{Kind: source.FrameEvents, Data: nil})
		if got := b.Router.Stats().Feeds.Undecodable; got != 2 {
			t.Errorf("%d undecodable messages, want 2", got)
		}
	})
}

func TestQueriesInFlightAreBounded(t *testing.T) {
	routertest.OnBench(t, router.Options{MaxQueries: 2}, func(b *routertest.Bench) {
		b.Transport.HoldQueries(true)
		for id := range uint64(7) {
			p := b.Publisher(10+id, sourcetest.WorkerOwner(id+1), 0)
			p.Store(kv.TierDevice, sourcetest.Tokens(uint32(id)))
			b.Send(p.Announce())
		}
		b.Pass(time.Second)
		if got := len(b.Transport.Asked()); got != 2 {
			t.Errorf("%d queries in flight, want 2", got)
		}
		b.Transport.HoldQueries(false)
		b.Pass(time.Second)
		if s := b.Router.Stats(); s.Feeds.ExactFeeds != 7 || b.Transport.MostInFlight() != 2 {
			t.Errorf("%d feeds are exact and at most %d queries ran; want 7 and 2", s.Feeds.ExactFeeds, b.Transport.MostInFlight())
		}
	})
}

func TestQueriesWithoutAnswerTimeOut(t *testing.T) {
	routertest.OnBench(t, router.Options{QueryTimeout: 3 * time.Second, FeedTimeout: time.Hour}, func(b *routertest.Bench) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		p.Store(kv.TierDevice, sourcetest.Tokens(1))
		b.Transport.HoldQueries(true)
		b.Send(p.Announce())
		b.Pass(4 * time.Second)
		if got := b.Router.Stats().Feeds; got.QueryFailures != 1 || got.Queries != 2 {
			t.Errorf("stats %+v, want one query failed and one more sent", got)
		}
		// The owner ends while a query of its feed is in flight.
		b.Send(p.Goodbye())
		b.Transport.HoldQueries(false)
		b.Pass(time.Second)
		if got := b.Router.Stats(); got.Index.Memberships != 0 || got.Feeds.Feeds != 0 {
			t.Errorf("stats %+v, want nothing left", got)
		}
	})
}

func TestRoundRobinTakesTurnsAndSaysFallback(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.Configured(func(c *config.Config) { c.RouterMode = config.ModeRoundRobin })}, func(b *routertest.Bench) {
		for id := range uint64(3) {
			b.Send(b.Publisher(10+id, sourcetest.WorkerOwner(id+1), 0).Announce())
		}
		for i := range 6 {
			b.Expect("turn", sourcetest.Tokens(1), kv.WorkerID(i%3+1), 0, feed.Fallback)
		}
	})
}

// TestModesWithoutCache: in every mode but kv the answer is a fallback without a score, the
// booking counts, and workers that are not allowed are left out.
func TestModesWithoutCache(t *testing.T) {
	for mode, want := range map[string]int{ // how many workers get a request of three
		config.ModeRandom: 0, config.ModePowerOfTwo: 2, config.ModeLeastLoaded: 3, config.ModeRoundRobin: 3,
	} {
		o := router.Options{Config: routertest.Configured(func(c *config.Config) { c.RouterMode, c.Seed = mode, 5 })}
		routertest.OnBench(t, o, func(b *routertest.Bench) {
			for id := range uint64(3) {
				p := b.Publisher(10+id, sourcetest.WorkerOwner(id+1), 0)
				b.Send(p.Announce())
				b.Send(p.Store(kv.TierDevice, sourcetest.Tokens(1)))
			}
			got := make(map[kv.WorkerID]bool)
			for _, id := range []string{"a", "b", "c"} {
				m, err := b.Router.FindBestMatch(t.Context(), &router.Request{ID: id, Tokens: sourcetest.Tokens(1), UpdateStates: true})
				if err != nil || m.Quality != feed.Fallback || m.Mode != "" || !m.Booked {
					t.Fatalf("%s: %+v, %v", mode, m, err)
				}
				got[m.Worker.ID] = true
			}
			if len(got) < want {
				t.Errorf("%s: %d workers get three requests, want %d", mode, len(got), want)
			}
			for range 20 {
				m, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1), Allowed: map[kv.WorkerID]struct{}{2: {}}})
				if err != nil || m.Worker.ID != 2 {
					t.Fatalf("%s: worker %s, %v; want the allowed one", mode, m.Worker, err)
				}
			}
		})
	}
}

// TestDirectModeNeedsAWorker: a request without one is refused, a pinned one is booked.
func TestDirectModeNeedsAWorker(t *testing.T) {
	o := router.Options{Config: routertest.Configured(func(c *config.Config) { c.RouterMode = config.ModeDirect })}
	routertest.OnBench(t, o, func(b *routertest.Bench) {
		b.Send(b.Publisher(10, sourcetest.WorkerOwner(1), 0).Announce(), b.Publisher(11, sourcetest.WorkerOwner(2), 0).Announce())
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1)}); !errors.Is(err, modes.ErrNotPinned) {
			t.Errorf("without a worker: %v", err)
		}
		m, err := b.Router.FindBestMatch(t.Context(), &router.Request{
			ID: "a", Tokens: sourcetest.Tokens(1), UpdateStates: true, Pinned: &kv.Worker{ID: 2},
		})
		if err != nil || m.Worker.ID != 2 || !m.Booked || m.Quality != feed.Fallback {
			t.Errorf("pinned: %+v, %v", m, err)
		}
	})
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for field, o := range map[string]router.Options{
		"router_mode":                       {Config: routertest.Configured(func(c *config.Config) { c.RouterMode = "best" })},
		"feed timeout":                      {FeedTimeout: -1},
		"max feeds":                         {MaxFeeds: -1},
		"http_overload_status":              {Config: routertest.Configured(func(c *config.Config) { c.HTTPOverloadStatus = 200 })},
		"host_cache_hit_weight":             {Config: routertest.Configured(func(c *config.Config) { c.HostCacheHitWeight = 2 })},
		"router_temperature":                {Config: routertest.Configured(func(c *config.Config) { c.RouterTemperature = -1 })},
		"router_active_request_expiry_secs": {Config: routertest.Configured(func(c *config.Config) { c.ActiveRequestExpirySecs = -1 })},
	} {
		_, err := router.New(o, sourcetest.NewTransport())
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(field)) {
			t.Errorf("%s: error %v does not name it", field, err)
		}
	}
}

// Of equal workers the older formula takes the one with the smallest cache, also where
// that is known only by the decisions.
func TestTheSmallestCacheWinsATieWithoutEvents(t *testing.T) {
	c := routertest.Configured(func(c *config.Config) {
		c.CostFormula, c.UseKVEvents, c.RouterTrackActiveBlocks = config.FormulaOverlapWeight, false, false
	})
	routertest.OnBench(t, router.Options{Config: c}, func(b *routertest.Bench) {
		b.Send(b.Publisher(11, sourcetest.WorkerOwner(1), 0).Announce(), b.Publisher(12, sourcetest.WorkerOwner(2), 0).Announce())
		if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{ID: "a", Tokens: sourcetest.Tokens(1, 2), Pinned: &kv.Worker{ID: 1}, UpdateStates: true}); err != nil {
			t.Fatal(err)
		}
		b.Router.Free("", "a")
		for i := range 20 {
			if m := b.Best(sourcetest.Tokens(uint32(100 + i))); m.Worker.ID != 2 {
				t.Fatalf("worker %d, which holds two blocks, was taken; worker 2 holds none", m.Worker.ID)
			}
		}
	})
}
