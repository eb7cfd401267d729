package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// restarts are the ways in which a worker gets another publisher, with the incarnations
// of its engine before and after.
var restarts = []struct {
	name          string
	goodbye       bool
	pause         time.Duration
	before, after uint64
	same          bool
}{
	{"the agent was killed", false, 0, 5, 5, true},
	{"the agent was stopped and started", true, 2 * time.Second, 5, 5, true},
	{"the agent was away for longer than a feed may be silent", false, 40 * time.Second, 5, 5, true},
	{"the agent does not tell incarnations", true, 2 * time.Second, 0, 0, true},
	{"the agent tells incarnations from now on", true, 2 * time.Second, 0, 5, true},
	{"the engine was restarted too", false, 0, 5, 6, false},
	{"the engine was restarted while the agent was away", true, 2 * time.Second, 5, 6, false},
}

// TestAnAgentRestartKeepsWhatItsEnginesDo: the requests of an engine that keeps running
// stay on its account and can be marked and freed, and what was measured of it stays.
// Those of an engine that was restarted are dropped.
func TestAnAgentRestartKeepsWhatItsEnginesDo(t *testing.T) {
	for _, c := range restarts {
		t.Run(c.name, func(t *testing.T) {
			cost := routertest.Configured(func(s *config.Config) { s.Score, s.FirstOfEqual = config.ScorePrice, true })
			routertest.OnBench(t, router.Options{Config: cost}, func(b *routertest.Bench) {
				p, other := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0)
				p.Meta.Card.Incarnation = c.before
				b.Send(p.Announce(), other.Announce())
				teach(b, 1)
				for i := range 20 {
					if err := b.AddRequest(&router.Request{ID: fmt.Sprint("r", i), Tokens: sourcetest.Tokens(uint32(100+i), 2)}, kv.Worker{ID: 1}, 0); err != nil {
						t.Fatal(err)
					}
				}
				if c.goodbye {
					b.Send(p.Goodbye())
					b.Expect("while the agent is away", sourcetest.Tokens(1), 2, 0, feed.Exact)
				}
				for range c.pause / time.Second {
					b.Pass(time.Second)
					b.Send(other.Announce())
				}
				next := b.Publisher(21, sourcetest.WorkerOwner(1), 0)
				next.Meta.Card.Incarnation = c.after
				b.Send(next.Announce(), other.Announce())
				want := 0
				if c.same {
					want = 20
				}
				if n := b.Router.Stats().Requests.Load.Requests; n != want {
					t.Errorf("%d requests run, want %d", n, want)
				}
				if err := b.Router.MarkPrefillCompleted("", "r0"); (err == nil) != c.same {
					t.Errorf("mark_prefill of a request: %v", err)
				}
				if b.Router.Free("", "r1") != c.same {
					t.Errorf("a request is freed: %v", !c.same)
				}
				shown := routertest.Text(t, routertest.Call(t, api.New(b.Router, api.Options{}).Handler(), "GET", "/v1/workers", "", ""))
				if strings.Contains(shown, `"source":"measured","samples":12`) != c.same {
					t.Errorf("measured: %s", shown)
				}
			})
		})
	}
}

// teach lets a worker compute prompts, so that its rate is known.
func teach(b *routertest.Bench, worker kv.WorkerID) {
	b.T.Helper()
	for i := range 12 {
		q := &router.Request{ID: fmt.Sprint("taught", i), Tokens: make([]uint32, 4000)}
		if err := b.AddRequest(q, kv.Worker{ID: worker}, 0); err != nil {
			b.T.Fatal(err)
		}
		b.Pass(time.Second)
		if err := b.Router.MarkPrefillCompleted("", q.ID); err != nil {
			b.T.Fatal(err)
		}
		b.Router.Free("", q.ID)
		b.Send(b.Transport.Known(11).Announce(), b.Transport.Known(12).Announce())
	}
}

// TestAWorkerThatStaysAwayIsForgotten: with its requests and what was measured of it, and
// at once when it serves another model now.
func TestAWorkerThatStaysAwayIsForgotten(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("a", 4)
		b.Send(p.Announce(), b.Publisher(12, sourcetest.WorkerOwner(2), 0).Of("a", 4).Announce())
		add := func(id string, worker kv.WorkerID) {
			t.Helper()
			if err := b.AddRequest(&router.Request{ID: id, Model: "a", Tokens: sourcetest.Tokens(1)}, kv.Worker{ID: worker}, 0); err != nil {
				t.Fatal(err)
			}
		}
		add("one", 1)
		add("two", 2)
		b.Send(p.Goodbye(), b.Publisher(13, sourcetest.WorkerOwner(1), 0).Of("c", 4).Announce())
		if got := b.Router.Stats().Requests.Load; got.Requests != 1 || got.Abandoned != 1 {
			t.Errorf("the worker serves another model: %+v", got)
		}
		for range 400 { // the router hears of nobody
			b.Pass(time.Second)
			b.Router.MarkPrefillCompleted("", "two") // the request is no silent one
		}
		if got := b.Router.Stats().Requests.Load; got.Requests != 0 || got.Abandoned != 2 {
			t.Errorf("the worker stays away: %+v", got)
		}
		if n := len(b.Router.Models("")); n != 0 {
			t.Errorf("%d models are left", n)
		}
	})
}

// TestWorkersSayWhetherTheyHashPairs: a model's prompts are hashed as most of its workers'
// cards say, whatever another model does.
func TestWorkersSayWhetherTheyHashPairs(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		pairs, plain := b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("pairs", 4), b.Publisher(12, sourcetest.WorkerOwner(2), 0).Of("plain", 4)
		pairs.Meta.Card.Eagle = true
		b.Send(pairs.Announce(), plain.Announce())
		for name, want := range map[string]bool{"pairs": true, "plain": false} {
			m, err := b.Router.Model(name)
			if err != nil || m.IsEagle() != want {
				t.Errorf("%s: eagle %v, want %v, %v", name, !want, want, err)
			}
		}
		one := pairs
		for id := range uint64(2) {
			one = b.Publisher(20+id, sourcetest.WorkerOwner(5+id), 0).Of("pairs", 4)
			b.Send(one.Announce())
		}
		if m, _ := b.Router.Model("pairs"); m.IsEagle() {
			t.Error("one worker of three decides")
		}
		pairs.Meta.Card.Eagle = false
		b.Send(pairs.Announce())
		one.Meta.Card.Eagle = true
		b.Send(one.Announce())
		if m, _ := b.Router.Model("pairs"); m.IsEagle() {
			t.Error("one worker of three decides")
		}
	})
}

// TestAnEngineIsKnownAfterAnotherSpokeForIt: a registration, which tells no incarnation,
// stands in for the agent. When the agent is back, its engine is told from the one that
// was there before.
func TestAnEngineIsKnownAfterAnotherSpokeForIt(t *testing.T) {
	for after, want := range map[uint64]int{5: 1, 6: 0} {
		routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
			p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
			p.Meta.Card.Incarnation = 5
			b.Send(p.Announce())
			if err := b.AddRequest(&router.Request{ID: "r", Tokens: sourcetest.Tokens(1)}, kv.Worker{ID: 1}, 0); err != nil {
				t.Fatal(err)
			}
			registered := b.Publisher(12, sourcetest.WorkerOwner(1), 0)
			registered.Meta.Card.Silent, registered.Meta.Card.Source = true, source.FromHTTP
			b.Send(p.Goodbye(), registered.Announce())
			if n := b.Router.Stats().Requests.Load.Requests; n != 1 {
				t.Errorf("%d requests run while the worker is registered", n)
			}
			next := b.Publisher(13, sourcetest.WorkerOwner(1), 0)
			next.Meta.Card.Incarnation = after
			b.Send(next.Announce())
			if n := b.Router.Stats().Requests.Load.Requests; n != want {
				t.Errorf("engine %d: %d requests run, want %d", after, n, want)
			}
		})
	}
}

// TestDynamosWorkersAreNoRegistrations: without events they are silent, and are heard of
// all the same: a registration of another model takes no requests from them.
func TestDynamosWorkersAreNoRegistrations(t *testing.T) {
	silent := routertest.Configured(func(c *config.Config) { c.UseKVEvents = false })
	routertest.OnBench(t, router.Options{Config: silent}, func(b *routertest.Bench) {
		w, registered := b.Publisher(11, sourcetest.WorkerOwner(1), 0).Of("a", 4), b.Publisher(12, sourcetest.WorkerOwner(2), 0).Of("c", 4)
		w.Meta.Card.Source, registered.Meta.Card.Source = "dynamo", source.FromHTTP
		b.Send(w.Announce(), registered.Announce())
		if m, err := b.Router.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1)}); err != nil || m.Worker.ID != 1 {
			t.Errorf("%+v, %v", m, err)
		}
	})
}
