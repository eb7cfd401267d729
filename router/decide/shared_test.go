package decide

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
	"github.com/blockyard-ai/blockyard/router/sharedcache/sharedcachetest"
)

// fakeSharedCache answers every question with the same.
type fakeSharedCache struct {
	hits  schedule.SharedHits
	err   error
	asked atomic.Int64
}

func (f *fakeSharedCache) CheckBlocks(context.Context, []uint32, int, string) (schedule.SharedHits, error) {
	f.asked.Add(1)
	return f.hits, f.err
}

// inspectingSelector takes one worker whatever comes, and checks the shared hits that
// it is shown; expected is -1 for none.
type inspectingSelector struct {
	t        *testing.T
	expected int
	selected kv.Worker
}

func (i *inspectingSelector) Select(in *schedule.Selection) (int, error) {
	got := -1
	if in.Request.SharedHits != nil {
		got = in.Request.SharedHits.TotalHits()
	}
	if got != i.expected {
		i.t.Errorf("the selector sees %d shared hits, want %d", got, i.expected)
	}
	m, _ := in.Members.Find(i.selected)
	return m, nil
}

// sharedSetup is a router that knows no blocks, of two tokens each.
func sharedSetup(t *testing.T, cache sharedcache.Cache, selector schedule.Selector) *setup {
	s := newSetup(t, func(o *Options, c *config.Config, s *schedule.Options) {
		c.OverlapScoreCredit, c.UseKVEvents, c.RouterTrackActiveBlocks = 0, false, false
		c.SharedCacheMultiplier, c.SkipInitialWorkerWait = 0.5, true
		o.SharedCache, s.Selector = cache, selector
	})
	s.blockSize = 2
	return s
}

func TestFindBestMatchIgnoresSharedCacheErrors(t *testing.T) {
	cache := &fakeSharedCache{err: errors.New("offline")}
	s := sharedSetup(t, cache, &inspectingSelector{t, -1, worker(1)})
	for range 10 {
		w, overlap, err := s.choose(&Query{Tokens: []uint32{11, 12, 21, 22}})
		if err != nil || w != worker(1) || overlap != 0 {
			t.Errorf("%s with %d blocks, %v", w, overlap, err)
		}
	}
	warnings := s.logged.FilterMessageSnippet("shared cache").FilterLevelExact(zapcore.WarnLevel).Len()
	if s.seen.failures != 10 || s.seen.decided != 10 || warnings != 1 {
		t.Errorf("%d failures, %d decisions and %d warnings; want 10, 10, 1", s.seen.failures, s.seen.decided, warnings)
	}
}

// A warning that was given is given again after a while.
func TestSharedCacheWarningsComeNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sharedSetup(t, &fakeSharedCache{err: errors.New("offline")}, &inspectingSelector{t, -1, worker(1)})
		for range 30 {
			s.best(&Query{Tokens: []uint32{11, 12}})
			<-time.After(time.Second)
		}
		if n := s.logged.FilterMessageSnippet("shared cache").Len(); n != 3 {
			t.Errorf("%d warnings in 30 s, want 3", n)
		}
	})
}

// meeting is an index and a shared cache that wait for one another.
type meeting struct {
	*index.Index
	index, cache chan struct{}
}

func (m *meeting) Match(dst *index.Matches, locals []kv.LocalHash, r index.Reading) {
	close(m.index)
	<-m.cache
	m.Index.Match(dst, locals, r)
}

func (m *meeting) CheckBlocks(context.Context, []uint32, int, string) (schedule.SharedHits, error) {
	close(m.cache)
	<-m.index
	return schedule.SharedHits{}, nil
}

func TestSharedCacheAndIndexAreAskedAtTheSameTime(t *testing.T) {
	m := &meeting{index: make(chan struct{}), cache: make(chan struct{})}
	s := newSetup(t, func(o *Options, c *config.Config, _ *schedule.Options) {
		m.Index = o.Index.(*index.Index)
		o.Index, o.SharedCache, c.SharedCacheMultiplier = m, m, 0.5
	})
	s.best(&Query{Tokens: tokens(1, 16)})
	if s.seen.last.SharedCache <= 0 || s.seen.last.Total < s.seen.last.SharedCache {
		t.Errorf("timings %+v", s.seen.last)
	}
}

// hungCache does not answer, and ignores the end of its context, until it is let go.
type hungCache struct {
	letGo chan struct{}
	asked atomic.Int64
}

func (h *hungCache) CheckBlocks(_ context.Context, tokens []uint32, _ int, _ string) (schedule.SharedHits, error) {
	h.asked.Add(1)
	<-h.letGo
	_ = tokens[len(tokens)-1] + tokens[0]
	return schedule.SharedHits{}, nil
}

// A cache that never answers costs its credit and a quarter of a second, and there are
// only so many questions to it; when it answers again it counts again.
func TestHungSharedCacheDoesNotHangRouting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &hungCache{letGo: make(chan struct{})}
		s := newSetup(t, func(o *Options, c *config.Config, _ *schedule.Options) {
			o.SharedCache, c.SharedCacheMultiplier = cache, 0.5
		})
		q := &Query{Tokens: tokens(1, 64)}
		begin := time.Now()
		if m := s.best(q); m.Shared != nil || time.Since(begin) != 250*time.Millisecond {
			t.Errorf("shared %+v after %v", m.Shared, time.Since(begin))
		}
		q.Tokens[0]++ // the caller's again
		var running sync.WaitGroup
		for range maxPending + 10 {
			running.Go(func() {
				if _, err := s.router.FindBestMatchDetails(t.Context(), &Query{Tokens: tokens(1, 16)}); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		begin = time.Now()
		if s.best(q); time.Since(begin) != 0 {
			t.Errorf("with %d questions open another one takes %v", maxPending, time.Since(begin))
		}
		if n := cache.asked.Load(); n != maxPending || s.seen.failures != maxPending+12 {
			t.Errorf("%d questions and %d failures, want %d and %d", n, s.seen.failures, maxPending, maxPending+12)
		}
		close(cache.letGo)
		synctest.Wait()
		if m := s.best(q); m.Shared == nil {
			t.Error("the cache answers and does not count")
		}
	})
}

// An adapter and a multimodal object are no part of what a shared cache is asked, so
// that what it says would be wrong.
func TestSharedCacheIsNotAskedForWhatItCannotTellApart(t *testing.T) {
	cache := &fakeSharedCache{}
	s := newSetup(t, func(o *Options, c *config.Config, _ *schedule.Options) {
		o.SharedCache, c.SharedCacheMultiplier = cache, 0.5
	})
	image := []*BlockExtraInfo{{MMObjects: []MMObject{{Hash: 1}}}}
	for _, c := range []struct {
		q    Query
		want int64
	}{{Query{LoRA: "a"}, 0}, {Query{BlockMMInfos: image}, 0}, {Query{Salt: "a"}, 1}, {Query{}, 2}} {
		c.q.Tokens = tokens(1, 16)
		if m := s.best(&c.q); cache.asked.Load() != c.want || (m.Shared != nil) != (c.want > 0) {
			t.Errorf("%+v: asked %d times in all, shared %v", c.q, cache.asked.Load(), m.Shared)
		}
	}
}

// A shared cache is asked where the choice looks at its answer, and nowhere else: not
// for a pinned request, at a multiplier of 0, or round-robin.
func TestSharedCacheIsAskedWhereItCounts(t *testing.T) {
	zero, half, one := 0.0, 0.5, worker(1)
	for name, c := range map[string]struct {
		multiplier float64
		selector   schedule.Selector
		cost       bool
		query      Query
		want       int64
	}{
		"weights":             {multiplier: 0.5, want: 1},
		"cost":                {multiplier: 0.5, cost: true, want: 1},
		"multiplier 0":        {want: 0},
		"cost, multiplier 0":  {cost: true, want: 0},
		"pinned":              {multiplier: 0.5, query: Query{Pinned: &one}, want: 0},
		"round-robin":         {multiplier: 0.5, selector: &modes.RoundRobin{}, want: 0},
		"a request turns off": {multiplier: 0.5, query: Query{Override: &config.Override{SharedCacheMultiplier: &zero}}, want: 0},
		"a request turns on":  {query: Query{Override: &config.Override{SharedCacheMultiplier: &half}}, want: 1},
	} {
		cache := &fakeSharedCache{}
		s := newSetup(t, func(o *Options, cfg *config.Config, s *schedule.Options) {
			o.SharedCache, cfg.SharedCacheMultiplier, s.Selector = cache, c.multiplier, c.selector
			if c.cost {
				cfg.Score = config.ScorePrice
			}
		})
		c.query.Tokens = tokens(1, 64)
		if s.best(&c.query); cache.asked.Load() != c.want {
			t.Errorf("%s: asked %d times, want %d", name, cache.asked.Load(), c.want)
		}
	}
}

// A block in the shared cache counts where the worker has it not itself.
func TestSharedHitsOverHTTPCountInTheChoice(t *testing.T) {
	var double sharedcachetest.Server
	server := httptest.NewServer(&double)
	t.Cleanup(server.Close)
	client, err := sharedcache.NewClient(sharedcache.Options{URL: server.URL, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	s := newSetup(t, func(o *Options, c *config.Config, _ *schedule.Options) {
		o.SharedCache, c.SharedCacheMultiplier = client, 0.5
	})
	q := &Query{Tokens: tokens(1, 64)}
	s.store(kv.WorkerOwner(worker(1)), kv.TierDevice, q, 0, 1)
	s.store(kv.WorkerOwner(worker(2)), kv.TierDevice, q, 0, 2)
	var b blocks
	b.hash(q, 16, false)
	double.Store(kv.AppendSequence(nil, b.locals)...)
	m := s.best(q)
	if m.Shared == nil || *m.Shared != (SharedUse{Hits: 4, Beyond: 2}) || m.Worker != worker(2) || m.Prefill != 1 {
		t.Errorf("match %+v, shared %+v; want worker 2, two blocks beyond, one block to compute", m, m.Shared)
	}
	double.Fail(true)
	if m := s.best(q); m.Shared != nil || m.Prefill != 2 {
		t.Errorf("without the service: %+v, shared %+v", m, m.Shared)
	}
}

// TestCachedBlocksCountThoseInFlight: the engine finds them, on the device.
func TestCachedBlocksCountThoseInFlight(t *testing.T) {
	m := Match{Result: schedule.Result{Hits: index.Hits{kv.TierDevice: 2, kv.TierHost: 3}, InFlight: 4}}
	if got := m.CachedBlocks(); got != 5 {
		t.Errorf("%d blocks, want the 5 hits", got)
	}
	if m.InFlight = 7; m.CachedBlocks() != 7 || m.Hits[kv.TierDevice] != 2 {
		t.Errorf("%d blocks with hits %v, want 7 expected ones and the hits as they are", m.CachedBlocks(), m.Hits)
	}
}
