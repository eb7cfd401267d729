package router

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

func TestWorkersComeByAnnouncementAndWinByTheirBlocks(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		if _, err := b.router.FindBestMatch(t.Context(), &Request{Tokens: []uint32{1}}); !errors.Is(err, ErrNoWorkers) {
			t.Errorf("without workers: %v", err)
		}
		if err := b.router.Ready(); !errors.Is(err, ErrNoWorkers) {
			t.Errorf("ready without workers: %v", err)
		}
		p1, p2 := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(2), 0)
		b.send(p1.announce(), p2.announce())
		b.send(p2.store(kv.TierDevice, promptTokens(1, 2, 3)))
		b.expect("a cached prefix", promptTokens(1, 2, 9), 2, 2, QualityExact)
		b.send(Frame{Kind: FrameEvents, Data: p2.add(kvevent.Removed, kv.TierDevice, promptTokens(1, 2, 3), 1)})
		b.send(p1.store(kv.TierDevice, promptTokens(1, 2)))
		b.expect("the other one has more now", promptTokens(1, 2, 9), 1, 2, QualityExact)
		if err := b.router.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
		if _, err := b.router.FindBestMatch(t.Context(), &Request{Tokens: []uint32{1}, UpdateStates: true}); !errors.Is(err, ErrNoRequestID) {
			t.Errorf("states without an id: %v", err)
		}
	})
}

func TestPoolBlocksCountForEveryMember(t *testing.T) {
	onBench(t, Options{Config: firstOfEqual()}, func(b *bench) {
		p1, p2 := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(2), 77)
		pool := b.publisher(13, kv.PoolOwner(77), 0)
		b.send(p1.announce(), p2.announce())
		b.expect("a pool that nobody speaks for", promptTokens(1, 2), 1, 0, QualityDegraded)
		b.send(pool.announce(), pool.store(kv.TierHost, promptTokens(1, 2)), pool.store(kv.TierDisk, promptTokens(1, 2, 3)))
		m := b.best(promptTokens(1, 2, 3, 4))
		if m.Worker.ID != 2 || m.Hits[kv.TierHost] != 2 || m.Hits[kv.TierDisk] != 1 || m.Quality != QualityExact {
			t.Errorf("match %+v, want worker 2 with 2 host and 1 disk blocks, exact", m)
		}
		if want := 2*0.75 + 0.25; m.Effective != want || m.CachedTokens != 7 {
			t.Errorf("effective overlap %v, %d tokens; want %v, 7", m.Effective, m.CachedTokens, want)
		}
		p1.meta.Pool = 77
		b.send(p1.announce())
		if m := b.best(promptTokens(1, 2, 3)); m.Worker.ID != 1 || m.Hits[kv.TierHost] != 2 {
			t.Errorf("match %+v, want the new member to have the pool's blocks", m)
		}
		b.send(pool.goodbye())
		b.expect("without the pool", promptTokens(1, 2, 3), 1, 0, QualityDegraded)
	})
}

func TestLateRouterAsksForEverythingFirst(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		p := b.publisher(11, workerOwner(1), 0)
		for i := range uint32(5) {
			p.store(kv.TierDevice, promptTokens(1, 2, 10+i))
		}
		b.send(p.store(kv.TierDevice, promptTokens(1, 2, 20))) // before its announcement
		b.transport.holdQueries(true)
		b.send(p.announce())
		b.expect("while the answer is awaited", promptTokens(1, 2, 20), 1, 0, QualityFallback)
		b.send(p.store(kv.TierDevice, promptTokens(1, 2, 30)))
		b.transport.holdQueries(false)
		b.pass(0)
		b.expect("after the answer", promptTokens(1, 2, 30), 1, 3, QualityExact)
		b.expect("after the answer", promptTokens(1, 2, 20), 1, 3, QualityExact)
		if got := b.transport.asked(); len(got) != 1 || got[0] != "11 from 0" {
			t.Errorf("queries %v, want one for everything", got)
		}
		s := b.router.Stats()
		if s.Feeds.Unannounced != 1 || s.Feeds.Gaps != 0 || s.Feeds.Dumps != 1 {
			t.Errorf("stats %+v", s.Feeds)
		}
	})
}

func TestLostMessagesAreRepairedAndSaidSo(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		p := b.publisher(11, workerOwner(1), 0)
		b.send(p.announce(), p.store(kv.TierDevice, promptTokens(1)))
		p.store(kv.TierDevice, promptTokens(1, 2)) // lost
		b.transport.failQueries(errors.New("publisher is busy"))
		b.send(p.store(kv.TierDevice, promptTokens(1, 2, 3)))
		b.expect("in the gap", promptTokens(1, 2, 3), 1, 1, QualityDegraded)
		if f := b.router.Feeds()[0]; f.Health != kvevent.HealthDegraded || f.Cursor != 1 || f.Counters.Gaps != 1 {
			t.Errorf("feed %+v, want it degraded at event 1", f)
		}
		b.pass(time.Second)
		if got := len(b.transport.asked()); got < 2 || got > 4 {
			t.Errorf("%d queries in a second, want a few with growing pauses", got)
		}
		b.transport.failQueries(nil)
		b.pass(5 * time.Second)
		b.expect("repaired", promptTokens(1, 2, 3), 1, 3, QualityExact)
		// The last message of a burst is lost: the heartbeat finds it.
		p.store(kv.TierDevice, promptTokens(7))
		b.send(p.announce())
		b.expect("repaired again", promptTokens(7), 1, 1, QualityExact)
		// The publisher changes its mind about what it holds.
		p.drift(4711)
		b.send(p.announce())
		b.pass(time.Second)
		b.send(p.announce())
		f := b.router.Feeds()[0]
		if f.Counters.Gaps != 2 || f.Counters.GapsRepaired != 2 || f.Counters.DivergencesRepaired != 1 || !f.DigestOK {
			t.Errorf("feed %+v, want two gaps and one difference repaired", f)
		}
		if sum, pairs := onlyModel(t, b.router.models).index.Digest(workerOwner(1)); pairs != 5 || sum == 0 {
			t.Errorf("%d blocks, want 5", pairs)
		}
	})
}

func TestNewPublisherOfAnOwnerIsANewEpoch(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		old := b.publisher(11, workerOwner(1), 0)
		old.meta.Card.Incarnation = 1
		b.send(old.announce(), old.store(kv.TierDevice, promptTokens(1, 2)))
		if _, err := b.router.FindBestMatch(t.Context(), &Request{ID: "r", Tokens: promptTokens(1), UpdateStates: true}); err != nil {
			t.Fatal(err)
		}
		fresh := b.publisher(12, workerOwner(1), 0)
		fresh.meta.Card.Incarnation = 2
		b.send(fresh.announce())
		b.expect("a restarted engine", promptTokens(1, 2), 1, 0, QualityExact)
		if got := b.router.Stats().Requests.Load; got.Requests != 0 || got.Abandoned != 1 {
			t.Errorf("requests %+v, want the old engine's abandoned", got)
		}
		b.send(old.announce(), old.store(kv.TierDevice, promptTokens(1, 2)), old.goodbye())
		b.expect("its former publisher is over", promptTokens(1, 2), 1, 0, QualityExact)
		if got := b.router.Stats().Feeds; got.Fenced != 2 || got.Unannounced != 1 || got.Feeds != 1 {
			t.Errorf("stats %+v, want the former publisher fenced", got)
		}
		b.send(fresh.store(kv.TierDevice, promptTokens(5)))
		b.expect("the new one", promptTokens(5), 1, 1, QualityExact)
	})
}

func TestSilentOwnersAreForgotten(t *testing.T) {
	onBench(t, Options{Config: firstOfEqual()}, func(b *bench) {
		p1, p2 := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(2), 0)
		b.send(p1.announce(), p2.announce(), p1.store(kv.TierDevice, promptTokens(1)), p2.store(kv.TierDevice, promptTokens(1)))
		for range 20 {
			b.pass(time.Second)
			b.send(p2.announce())
		}
		b.expect("the one that still speaks", promptTokens(1), 2, 1, QualityExact)
		if got := b.router.Stats(); got.Workers != 1 || got.Feeds.Expired != 1 || got.Index.Memberships != 1 {
			t.Errorf("stats %+v, want one worker left", got)
		}
		// It comes back by itself, without a new publisher id.
		b.send(p1.announce())
		if got := b.router.Stats(); got.Workers != 2 || got.Index.Memberships != 2 {
			t.Errorf("stats %+v, want both workers", got)
		}
		// A disconnected router knows nothing of anybody's silence.
		b.send(Frame{Kind: FrameDisconnected})
		b.pass(time.Hour)
		b.expect("offline", promptTokens(1), 1, 1, QualityDegraded)
		b.send(Frame{Kind: FrameConnected})
		b.pass(10 * time.Second)
		b.send(p2.announce())
		b.pass(6 * time.Second)
		if got := b.router.Stats(); got.Workers != 1 || got.Feeds.Expired != 2 {
			t.Errorf("stats %+v, want the silent one forgotten", got)
		}
		b.send(p2.goodbye())
		if _, err := b.router.FindBestMatch(t.Context(), &Request{Tokens: []uint32{1}}); !errors.Is(err, ErrNoWorkers) {
			t.Errorf("after the last goodbye: %v", err)
		}
		b.send(p2.announce())
		if got := b.router.Stats(); got.Workers != 0 || got.Feeds.Fenced != 1 || got.Feeds.Gone != 1 {
			t.Errorf("stats %+v, want a late heartbeat ignored", got)
		}
		// Much later the id is an id like any other.
		b.pass(time.Hour)
		b.send(p2.announce())
		if got := b.router.Stats().Workers; got != 1 {
			t.Errorf("%d workers, want 1", got)
		}
	})
}

func TestPublishersThatDoNotFitAreRefused(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	onBench(t, Options{MaxFeeds: 2, Log: zap.New(core)}, func(b *bench) {
		good := b.publisher(11, workerOwner(1), 0)
		b.send(good.announce())
		none, zero := b.publisher(14, workerOwner(4), 0), b.publisher(15, workerOwner(0), 0)
		none.meta.BlockSize = 0
		for range 3 {
			b.send(none.announce(), zero.announce())
		}
		if got := b.router.Stats(); got.Workers != 1 || got.Feeds.Refused != 2 {
			t.Errorf("stats %+v, want one worker and two refused", got)
		}
		if logs.Len() != 2 {
			t.Errorf("%d lines were logged, want one for each refused publisher: %v", logs.Len(), logs.All())
		}
		b.send(b.publisher(16, workerOwner(6), 0).announce(), b.publisher(17, workerOwner(7), 0).announce())
		if got := b.router.Stats(); got.Workers != 2 || got.Feeds.Refused != 3 {
			t.Errorf("stats %+v, want the third worker of two refused", got)
		}
		// A publisher that changes its mind ends what it had.
		good.meta.BlockSize = 0
		b.send(good.announce())
		if got := b.router.Stats(); got.Workers != 1 || got.Feeds.Refused != 4 {
			t.Errorf("stats %+v, want the worker gone", got)
		}
		b.send(Frame{Kind: FrameAnnouncement, Data: []byte("x")}, Frame{Kind: FrameEvents, Data: nil})
		if got := b.router.Stats().Feeds.Undecodable; got != 2 {
			t.Errorf("%d undecodable messages, want 2", got)
		}
	})
}

func TestQueriesInFlightAreBounded(t *testing.T) {
	onBench(t, Options{MaxQueries: 2}, func(b *bench) {
		b.transport.holdQueries(true)
		for id := range uint64(7) {
			p := b.publisher(10+id, workerOwner(id+1), 0)
			p.store(kv.TierDevice, promptTokens(uint32(id)))
			b.send(p.announce())
		}
		b.pass(time.Second)
		if got := len(b.transport.asked()); got != 2 {
			t.Errorf("%d queries in flight, want 2", got)
		}
		b.transport.holdQueries(false)
		b.pass(time.Second)
		if s := b.router.Stats(); s.Feeds.ExactFeeds != 7 || b.transport.mostInFlight() != 2 {
			t.Errorf("%d feeds are exact and at most %d queries ran; want 7 and 2", s.Feeds.ExactFeeds, b.transport.mostInFlight())
		}
	})
}

func TestQueriesWithoutAnswerTimeOut(t *testing.T) {
	onBench(t, Options{QueryTimeout: 3 * time.Second, FeedTimeout: time.Hour}, func(b *bench) {
		p := b.publisher(11, workerOwner(1), 0)
		p.store(kv.TierDevice, promptTokens(1))
		b.transport.holdQueries(true)
		b.send(p.announce())
		b.pass(4 * time.Second)
		if got := b.router.Stats().Feeds; got.QueryFailures != 1 || got.Queries != 2 {
			t.Errorf("stats %+v, want one query failed and one more sent", got)
		}
		// The owner ends while a query of its feed is in flight.
		b.send(p.goodbye())
		b.transport.holdQueries(false)
		b.pass(time.Second)
		if got := b.router.Stats(); got.Index.Memberships != 0 || got.Feeds.Feeds != 0 {
			t.Errorf("stats %+v, want nothing left", got)
		}
	})
}

func TestRoundRobinTakesTurnsAndSaysFallback(t *testing.T) {
	onBench(t, Options{Config: configured(func(c *config.Config) { c.RouterMode = config.ModeRoundRobin })}, func(b *bench) {
		for id := range uint64(3) {
			b.send(b.publisher(10+id, workerOwner(id+1), 0).announce())
		}
		for i := range 6 {
			b.expect("turn", promptTokens(1), kv.WorkerID(i%3+1), 0, QualityFallback)
		}
	})
}

func TestRequestLifecycle(t *testing.T) {
	onBench(t, Options{Config: firstOfEqual()}, func(b *bench) {
		b.send(b.publisher(11, workerOwner(1), 0).announce(), b.publisher(12, workerOwner(2), 0).announce())
		r := &Request{ID: "a", Tokens: promptTokens(1, 2, 3), UpdateStates: true}
		if m, err := b.router.FindBestMatch(t.Context(), r); err != nil || m.Worker.ID != 1 {
			t.Fatalf("first request: %+v, %v", m, err)
		}
		if _, err := b.router.FindBestMatch(t.Context(), r); !errors.Is(err, load.ErrDuplicateRequest) {
			t.Errorf("the same request again: %v", err)
		}
		b.expect("the loaded worker is avoided", promptTokens(9), 2, 0, QualityExact)
		if err := b.router.AddRequest(&Request{ID: "b", Tokens: promptTokens(1)}, kv.Worker{ID: 2}, 0); err != nil {
			t.Error(err)
		}
		if err := b.router.AddRequest(&Request{Tokens: promptTokens(1)}, kv.Worker{ID: 2}, 0); !errors.Is(err, ErrNoRequestID) {
			t.Errorf("a request without id: %v", err)
		}
		loads, err := b.router.PotentialLoads(&Request{Tokens: append(promptTokens(1), 5)})
		want := []schedule.PotentialLoad{
			{Worker: kv.Worker{ID: 1}, PrefillTokens: 17, DecodeBlocks: 4},
			{Worker: kv.Worker{ID: 2}, PrefillTokens: 9, DecodeBlocks: 2},
		}
		if err != nil || len(loads) != 2 || loads[0] != want[0] || loads[1] != want[1] {
			t.Errorf("potential loads %+v, %v; want %+v", loads, err, want)
		}
		if err := b.router.MarkPrefillCompleted("a"); err != nil {
			t.Error(err)
		}
		if err := b.router.MarkPrefillCompleted("x"); !errors.Is(err, load.ErrUnknownRequest) {
			t.Errorf("an unknown request: %v", err)
		}
		if !b.router.Free("a") || b.router.Free("a") {
			t.Error("a request is freed once")
		}
		// Nobody frees b: it expires though nothing else happens to its worker.
		for range 310 {
			b.pass(time.Second)
			b.send(b.transport.known(11).announce(), b.transport.known(12).announce())
		}
		if got := b.router.Stats().Requests.Load; got.Expired != 1 || got.Requests != 0 {
			t.Errorf("requests %+v, want b expired", got)
		}
	})
}

// TestFormulaLine: the line that explains a cost reads as documented, and is
// not made unless debug lines are wanted.
func TestFormulaLine(t *testing.T) {
	for _, level := range []zapcore.Level{zap.DebugLevel, zap.InfoLevel} {
		core, logs := observer.New(level)
		onBench(t, Options{Log: zap.New(core)}, func(b *bench) {
			p := b.publisher(11, workerOwner(1), 0)
			b.send(p.announce(), p.store(kv.TierDevice, promptTokens(1, 2)))
			b.best(append(promptTokens(1, 2, 3), 1, 2))
		})
		found := logs.FilterMessage("Formula for worker_1: 4.5 = 1.0 * 1.5 + 3.0 (cached_blocks: 2)").Len()
		if (level == zap.DebugLevel) != (found == 1) {
			t.Errorf("level %s: %d such lines among %v", level, found, logs.All())
		}
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for field, o := range map[string]Options{
		"router_mode":                       {Config: configured(func(c *config.Config) { c.RouterMode = "best" })},
		"feed timeout":                      {FeedTimeout: -1},
		"max feeds":                         {MaxFeeds: -1},
		"http_overload_status":              {Config: configured(func(c *config.Config) { c.HTTPOverloadStatus = 200 })},
		"host_cache_hit_weight":             {Config: configured(func(c *config.Config) { c.HostCacheHitWeight = 2 })},
		"router_temperature":                {Config: configured(func(c *config.Config) { c.RouterTemperature = -1 })},
		"router_active_request_expiry_secs": {Config: configured(func(c *config.Config) { c.ActiveRequestExpirySecs = -1 })},
	} {
		_, err := New(o, newTestTransport())
		if err == nil || !bytes.Contains([]byte(err.Error()), []byte(field)) {
			t.Errorf("%s: error %v does not name it", field, err)
		}
	}
}

// Of equal workers the older formula takes the one with the smallest cache, also where
// that is known only by the decisions.
func TestTheSmallestCacheWinsATieWithoutEvents(t *testing.T) {
	c := configured(func(c *config.Config) {
		c.CostFormula, c.UseKVEvents, c.RouterTrackActiveBlocks = config.FormulaOverlapWeight, false, false
	})
	onBench(t, Options{Config: c}, func(b *bench) {
		b.send(b.publisher(11, workerOwner(1), 0).announce(), b.publisher(12, workerOwner(2), 0).announce())
		if _, err := b.router.FindBestMatch(t.Context(), &Request{ID: "a", Tokens: promptTokens(1, 2), Pinned: &kv.Worker{ID: 1}, UpdateStates: true}); err != nil {
			t.Fatal(err)
		}
		b.router.Free("a")
		for i := range 20 {
			if m := b.best(promptTokens(uint32(100 + i))); m.Worker.ID != 2 {
				t.Fatalf("worker %d, which holds two blocks, was taken; worker 2 holds none", m.Worker.ID)
			}
		}
	})
}
