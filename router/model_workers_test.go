package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
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
			cost := configured(func(s *config.Config) { s.Score, s.FirstOfEqual = config.ScoreCost, true })
			onBench(t, Options{Config: cost}, func(b *bench) {
				p, other := b.publisher(11, workerOwner(1), 0), b.publisher(12, workerOwner(2), 0)
				p.meta.Card.Incarnation = c.before
				b.send(p.announce(), other.announce())
				b.teach(1)
				for i := range 20 {
					if err := b.router.AddRequest(&Request{ID: fmt.Sprint("r", i), Tokens: promptTokens(uint32(100+i), 2)}, kv.Worker{ID: 1}, 0); err != nil {
						t.Fatal(err)
					}
				}
				if c.goodbye {
					b.send(p.goodbye())
					b.expect("while the agent is away", promptTokens(1), 2, 0, QualityExact)
				}
				for range c.pause / time.Second {
					b.pass(time.Second)
					b.send(other.announce())
				}
				next := b.publisher(21, workerOwner(1), 0)
				next.meta.Card.Incarnation = c.after
				b.send(next.announce(), other.announce())
				want := 0
				if c.same {
					want = 20
				}
				if n := b.router.Stats().Requests.Load.Requests; n != want {
					t.Errorf("%d requests run, want %d", n, want)
				}
				if err := b.router.MarkPrefillCompleted("r0"); (err == nil) != c.same {
					t.Errorf("mark_prefill of a request: %v", err)
				}
				if b.router.Free("r1") != c.same {
					t.Errorf("a request is freed: %v", !c.same)
				}
				shown := text(t, call(t, b.router.Handler(), "GET", "/v1/workers", "", ""))
				if strings.Contains(shown, `"source":"measured","samples":12`) != c.same {
					t.Errorf("measured: %s", shown)
				}
			})
		})
	}
}

// teach lets a worker compute prompts, so that its rate is known.
func (b *bench) teach(worker kv.WorkerID) {
	b.t.Helper()
	for i := range 12 {
		q := &Request{ID: fmt.Sprint("taught", i), Tokens: make([]uint32, 4000)}
		if err := b.router.AddRequest(q, kv.Worker{ID: worker}, 0); err != nil {
			b.t.Fatal(err)
		}
		b.pass(time.Second)
		if err := b.router.MarkPrefillCompleted(q.ID); err != nil {
			b.t.Fatal(err)
		}
		b.router.Free(q.ID)
		b.send(b.transport.known(11).announce(), b.transport.known(12).announce())
	}
}

// TestAWorkerThatStaysAwayIsForgotten: with its requests and what was measured of it, and
// at once when it serves another model now.
func TestAWorkerThatStaysAwayIsForgotten(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		p := b.publisher(11, workerOwner(1), 0).of("a", 4)
		b.send(p.announce(), b.publisher(12, workerOwner(2), 0).of("a", 4).announce())
		add := func(id string, worker kv.WorkerID) {
			t.Helper()
			if err := b.router.AddRequest(&Request{ID: id, Model: "a", Tokens: promptTokens(1)}, kv.Worker{ID: worker}, 0); err != nil {
				t.Fatal(err)
			}
		}
		add("one", 1)
		add("two", 2)
		b.send(p.goodbye(), b.publisher(13, workerOwner(1), 0).of("c", 4).announce())
		if got := b.router.Stats().Requests.Load; got.Requests != 1 || got.Abandoned != 1 {
			t.Errorf("the worker serves another model: %+v", got)
		}
		for range 400 { // the router hears of nobody
			b.pass(time.Second)
			b.router.MarkPrefillCompleted("two") // the request is no silent one
		}
		if got := b.router.Stats().Requests.Load; got.Requests != 0 || got.Abandoned != 2 {
			t.Errorf("the worker stays away: %+v", got)
		}
		if n := len(b.router.models.all()); n != 0 {
			t.Errorf("%d models are left", n)
		}
	})
}

// TestAbsentWorkersAreBounded: beyond the bound a worker that leaves is forgotten at once.
func TestAbsentWorkersAreBounded(t *testing.T) {
	a := newAbsentWorkers(time.Minute)
	for id := range kv.WorkerID(maxAbsent) {
		if !a.add(kv.Worker{ID: id}, 0) {
			t.Fatalf("worker %d finds no room", id)
		}
	}
	if a.add(kv.Worker{ID: maxAbsent}, 0) || a.len() != maxAbsent {
		t.Errorf("%d absent workers", a.len())
	}
	now := time.Unix(1000, 0)
	if over := a.expire(now); len(over) != 0 {
		t.Errorf("%d are over at once", len(over))
	}
	if over := a.expire(now.Add(2 * time.Minute)); len(over) != maxAbsent || a.len() != 0 {
		t.Errorf("%d are over, %d are left", len(over), a.len())
	}
}

// TestWorkersSayWhetherTheyHashPairs: a model's prompts are hashed as most of its workers'
// cards say, whatever another model does.
func TestWorkersSayWhetherTheyHashPairs(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		pairs, plain := b.publisher(11, workerOwner(1), 0).of("pairs", 4), b.publisher(12, workerOwner(2), 0).of("plain", 4)
		pairs.meta.Card.Eagle = true
		b.send(pairs.announce(), plain.announce())
		for name, want := range map[string]bool{"pairs": true, "plain": false} {
			f, err := b.router.Facade(name)
			if err != nil || f.IsEagle() != want || f.ModelName() != name {
				t.Errorf("%s: eagle %v, name %q, %v", name, f.IsEagle(), f.ModelName(), err)
			}
		}
		one := pairs
		for id := range uint64(2) {
			one = b.publisher(20+id, workerOwner(5+id), 0).of("pairs", 4)
			b.send(one.announce())
		}
		if f, _ := b.router.Facade("pairs"); f.IsEagle() {
			t.Error("one worker of three decides")
		}
		pairs.meta.Card.Eagle = false
		b.send(pairs.announce())
		one.meta.Card.Eagle = true
		b.send(one.announce())
		if f, _ := b.router.Facade("pairs"); f.IsEagle() {
			t.Error("one worker of three decides")
		}
	})
}

// TestAnEngineIsKnownAfterAnotherSpokeForIt: a registration, which tells no incarnation,
// stands in for the agent. When the agent is back, its engine is told from the one that
// was there before.
func TestAnEngineIsKnownAfterAnotherSpokeForIt(t *testing.T) {
	for after, want := range map[uint64]int{5: 1, 6: 0} {
		onBench(t, Options{}, func(b *bench) {
			p := b.publisher(11, workerOwner(1), 0)
			p.meta.Card.Incarnation = 5
			b.send(p.announce())
			if err := b.router.AddRequest(&Request{ID: "r", Tokens: promptTokens(1)}, kv.Worker{ID: 1}, 0); err != nil {
				t.Fatal(err)
			}
			registered := b.publisher(12, workerOwner(1), 0)
			registered.meta.Card.Silent, registered.meta.Card.Source = true, FromHTTP
			b.send(p.goodbye(), registered.announce())
			if n := b.router.Stats().Requests.Load.Requests; n != 1 {
				t.Errorf("%d requests run while the worker is registered", n)
			}
			next := b.publisher(13, workerOwner(1), 0)
			next.meta.Card.Incarnation = after
			b.send(next.announce())
			if n := b.router.Stats().Requests.Load.Requests; n != want {
				t.Errorf("engine %d: %d requests run, want %d", after, n, want)
			}
		})
	}
}

// TestDynamosWorkersAreNoRegistrations: without events they are silent, and are heard of
// all the same: a registration of another model takes no requests from them.
func TestDynamosWorkersAreNoRegistrations(t *testing.T) {
	silent := configured(func(c *config.Config) { c.UseKVEvents = false })
	onBench(t, Options{Config: silent}, func(b *bench) {
		w, registered := b.publisher(11, workerOwner(1), 0).of("a", 4), b.publisher(12, workerOwner(2), 0).of("c", 4)
		w.meta.Card.Source, registered.meta.Card.Source = "dynamo", FromHTTP
		b.send(w.announce(), registered.announce())
		if m, err := b.router.FindBestMatch(t.Context(), &Request{Tokens: promptTokens(1)}); err != nil || m.Worker.ID != 1 {
			t.Errorf("%+v, %v", m, err)
		}
	})
}
