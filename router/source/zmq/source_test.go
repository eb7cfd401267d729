package zmq

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	httpsource "github.com/blockyard-ai/blockyard/router/source/http"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// newSource returns a Source that the test closes.
func newSource(t *testing.T, o Options) *Source {
	t.Helper()
	o.AnnounceEvery = 20 * time.Millisecond
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func follow(t *testing.T, s *Source, e source.Engine) {
	t.Helper()
	if err := s.Follow(e); err != nil {
		t.Fatal(err)
	}
}

// behindAgents runs a router that hears of the engines from an agent's parts over HTTP.
func behindAgents(t *testing.T, o router.Options, engines ...*plainEngine) *router.Router {
	t.Helper()
	hub, err := httpfeed.New(httpfeed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	hub.Register(mux)
	server := httptest.NewServer(mux)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	for _, e := range engines {
		w := kv.Worker{ID: e.worker}
		stream := residency.NewStream(kv.WorkerOwner(w), nil)
		f, err := hub.NewFeed(0, kv.WorkerOwner(w), publisher.Meta{Model: "m", BlockSize: blockSize})
		if err == nil {
			err = errors.Join(stream.AddSink(f), f.Attach(stream))
		}
		if err != nil {
			t.Fatal(err)
		}
		rank, err := consolidator.NewRank(consolidator.RankConfig{
			Worker: w, BlockSize: blockSize, EventsEndpoint: e.pub.Events, ReplayEndpoint: e.pub.Replay,
		}, stream)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := rank.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	transport, err := httpsource.Connect(httpsource.Options{Agents: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	return routertest.RunRouter(t, o, transport)
}

// TestPlainEnginesMatchAsBehindAnAgent: two engines without agents, one of which loses
// frames, match every prompt as they do behind an agent.
func TestPlainEnginesMatchAsBehindAnAgent(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a := startEngine(t, 1, zmqpub.Options{})
	b := startEngine(t, 2, zmqpub.Options{Topic: "kv-events", Drop: zmqpub.ChooseDrops(8, 3, 2)})
	work := func(n int) {
		for _, tokens := range prompts(rng, n) {
			e := []*plainEngine{a, b}[rng.IntN(2)]
			e.compute(tokens, []string{"", "adapter"}[rng.IntN(2)], []string{"", "tenant"}[rng.IntN(2)])
			if rng.IntN(4) == 0 {
				e.evict(rng, 4)
			}
		}
	}
	work(200) // before anybody follows
	options := router.Options{Config: routertest.FirstOfEqual()}
	agents := behindAgents(t, options, a, b)
	s := newSource(t, Options{})
	plain := routertest.RunRouter(t, options, s)
	follow(t, s, a.target())
	follow(t, s, b.target())
	work(200)

	for name, r := range map[string]*router.Router{"plain engines": plain, "agents": agents} {
		sourcetest.Eventually(t, "the blocks of "+name, func() bool { return agreed(r, a, b) && r.Quality() == feed.Exact })
	}
	hits := 0
	for _, tokens := range prompts(rng, 300) {
		q := router.Request{Tokens: tokens, LoRA: []string{"", "adapter"}[rng.IntN(2)], Salt: []string{"", "tenant"}[rng.IntN(2)]}
		got, err := plain.FindBestMatch(t.Context(), &q)
		if err != nil {
			t.Fatal(err)
		}
		want, err := agents.FindBestMatch(t.Context(), &q)
		if err != nil {
			t.Fatal(err)
		}
		if got.Worker != want.Worker || got.Hits != want.Hits || got.Quality != want.Quality {
			t.Fatalf("%v: worker %s with %v, %s; behind an agent worker %s with %v, %s",
				q, got.Worker, got.Hits, got.Quality, want.Worker, want.Hits, want.Quality)
		}
		hits += int(got.Hits[kv.TierDevice])
	}
	if hits < 300 {
		t.Errorf("%d hits: the prompts miss", hits)
	}
	card := plain.Workers()[0].Card
	if card.Endpoint != "http://a:8000" || card.DeviceBlocks != 1000 || card.Source != "zmq" || card.Silent {
		t.Errorf("card %+v", card)
	}
	c := s.Counters()
	if c.Engines != 2 || c.Ranks != 2 || c.Degraded != 0 || c.Followed.Repaired == 0 || c.Followed.Lost != 0 || c.Published.Skipped != 0 {
		t.Errorf("counters %+v: want two engines, repaired gaps and no loss", c)
	}
	if m := s.Metrics()[0]; m.Gauges["known_blocks"] != uint64(len(a.held)+len(b.held)) || m.Counters["gaps"] != c.Followed.Gaps {
		t.Errorf("metrics %+v", m)
	}
}

// TestLossWithoutReplayIsForgotten: a gap that nobody can repair costs the blocks from
// before, and later blocks are believed.
func TestLossWithoutReplayIsForgotten(t *testing.T) {
	e := startEngine(t, 1, zmqpub.Options{Drop: map[uint64]bool{2: true}})
	s := newSource(t, Options{})
	r := routertest.RunRouter(t, router.Options{}, s)
	target := e.target()
	target.Ranks[0].Replay = ""
	follow(t, s, target)
	sourcetest.Eventually(t, "the engine is reached", func() bool { return r.Quality() == feed.Exact })
	// Until the subscription has arrived frames are not sent to it.
	sourcetest.Eventually(t, "the first block is known", func() bool {
		if e.next == 1_000_001 {
			e.compute(sourcetest.Tokens(1), "", "")
		}
		return routertest.DeviceHits(r, sourcetest.Tokens(1)) == 1
	})
	e.compute(sourcetest.Tokens(2), "", "")
	e.compute(sourcetest.Tokens(3), "", "") // is lost
	e.compute(sourcetest.Tokens(4), "", "")
	sourcetest.Eventually(t, "only the last block is known", func() bool {
		return routertest.DeviceHits(r, sourcetest.Tokens(4)) == 1 && routertest.DeviceHits(r, sourcetest.Tokens(1)) == 0
	})
	if c := s.Counters(); c.Followed.Lost != 1 || c.Followed.Known != 1 {
		t.Errorf("counters %+v, want one loss", c.Followed)
	}
}

// TestUnreachedAndRestartedEngine: an engine that is not there is a worker of unknown blocks; a
// restarted one has only its new blocks.
func TestUnreachedAndRestartedEngine(t *testing.T) {
	first := startEngine(t, 1, zmqpub.Options{})
	target := first.target()
	first.compute(sourcetest.Tokens(1, 2), "", "")
	first.pub.Close()
	s := newSource(t, Options{})
	r := routertest.RunRouter(t, router.Options{}, s)
	follow(t, s, target)
	sourcetest.Eventually(t, "the worker is known", func() bool { return len(r.Workers()) == 1 })
	if q := r.Quality(); q != feed.Degraded {
		t.Errorf("quality %s before the engine was reached, want degraded", q)
	}
	if m, err := r.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1)}); err != nil || m.Quality != feed.Degraded {
		t.Errorf("match %+v, %v: the worker takes no requests", m, err)
	}
	same := zmqpub.Options{Events: first.pub.Events, Replay: first.pub.Replay}
	second := startEngine(t, 1, same)
	second.compute(sourcetest.Tokens(1, 2, 3), "", "")
	second.compute(sourcetest.Tokens(1, 5), "", "")
	sourcetest.Eventually(t, "the engine is followed", func() bool { return agreed(r, second) && r.Quality() == feed.Exact })

	second.pub.Close()
	third := startEngine(t, 1, same)
	third.compute(sourcetest.Tokens(7, 8), "", "")
	sourcetest.Eventually(t, "only the new engine's blocks", func() bool { return agreed(r, third) && r.Quality() == feed.Exact })
	if c := s.Counters(); c.Followed.Restarts != 1 {
		t.Errorf("%d restarts, want 1", c.Followed.Restarts)
	}
}

// TestFollowAgain: an equal target changes nothing, another card is announced by the same
// publisher, another block size is another worker.
func TestFollowAgain(t *testing.T) {
	e := startEngine(t, 1, zmqpub.Options{})
	e.compute(sourcetest.Tokens(1, 2), "", "")
	s := newSource(t, Options{})
	r := routertest.RunRouter(t, router.Options{}, s)
	target := e.target()
	follow(t, s, target)
	sourcetest.Eventually(t, "the engine is followed", func() bool { return agreed(r, e) })
	id := r.Feeds()[0].PublisherID

	follow(t, s, target)
	target.Card.DeviceBlocks = 5
	follow(t, s, target)
	sourcetest.Eventually(t, "the card is announced", func() bool { return r.Workers()[0].Card.DeviceBlocks == 5 })
	if f := r.Feeds()[0]; f.PublisherID != id || !agreed(r, e) {
		t.Errorf("publisher %x after a new card, want %x and its blocks", f.PublisherID, id)
	}

	target.BlockSize, target.Model = 2*blockSize, "m2"
	follow(t, s, target)
	sourcetest.Eventually(t, "the worker serves another model", func() bool {
		w := r.Workers()
		return len(w) == 1 && w[0].Model == "m2" && r.Feeds()[0].PublisherID != id && s.Counters().Ranks == 1
	})
	s.Unfollow(9) // not followed
	s.Unfollow(1)
	s.Unfollow(1)
	sourcetest.Eventually(t, "the worker leaves", func() bool { return len(r.Feeds()) == 0 })
	follow(t, s, e.target())
	sourcetest.Eventually(t, "the engine is followed again", func() bool { return agreed(r, e) })
	if c := s.Counters(); c.Followed.Batches < 2 || c.Engines != 1 {
		t.Errorf("counters %+v: the batches of ended ranks are missing", c)
	}
}

// TestPublisherWinsOverRegistration: a registered worker whose engine is followed is
// announced once, by the engine's events, and again as silent after Unfollow.
func TestPublisherWinsOverRegistration(t *testing.T) {
	e := startEngine(t, 7, zmqpub.Options{})
	e.compute(sourcetest.Tokens(1), "", "")
	s := newSource(t, Options{})
	joined, err := registry.New(registry.Options{AnnounceEvery: 20 * time.Millisecond}, s)
	if err != nil {
		t.Fatal(err)
	}
	r := routertest.RunRouter(t, router.Options{}, joined)
	if err := joined.Register(routertest.SomeWorker(7), time.Hour); err != nil {
		t.Fatal(err)
	}
	is := func(source string) func() bool {
		return func() bool { w := r.Workers(); return len(w) == 1 && w[0].Card.Source == source }
	}
	sourcetest.Eventually(t, "the registered worker", is("http"))
	follow(t, s, e.target())
	sourcetest.Eventually(t, "the followed worker", is("zmq"))
	sourcetest.Eventually(t, "its blocks", func() bool { return agreed(r, e) })
	for range 5 {
		<-time.After(20 * time.Millisecond)
		if !is("zmq")() {
			t.Fatalf("workers %v while the engine is followed", r.Workers())
		}
	}
	if got := joined.Metrics(); len(got) != 1 || got[0].Name != "zmq" {
		t.Errorf("metrics %+v", got)
	}
	s.Unfollow(7)
	sourcetest.Eventually(t, "the registered worker again", is("http"))
}

// TestLateRouter: a router that comes late asks for everything, and one that lost frames
// asks for these.
func TestLateRouter(t *testing.T) {
	e := startEngine(t, 1, zmqpub.Options{})
	s := newSource(t, Options{})
	follow(t, s, e.target())
	rng := rand.New(rand.NewPCG(5, 6))
	for _, tokens := range prompts(rng, 500) {
		e.compute(tokens, "", "")
		e.evict(rng, 4)
	}
	// What a router gets that ends before the next one begins.
	var id, last uint64
	for last == 0 || s.Counters().Followed.Known != uint64(len(e.held)) {
		if f := <-s.Frames(); f.Kind == source.FrameAnnouncement {
			a, err := kvevent.DecodeAnnouncement(f.Data)
			if err != nil {
				t.Fatal(err)
			}
			id, last = a.PublisherID, a.LastEventID
		}
	}
	r := routertest.RunRouter(t, router.Options{}, s)
	sourcetest.Eventually(t, "the router has all blocks", func() bool { return agreed(r, e) && r.Quality() == feed.Exact })
	if c := s.Counters(); c.Published.Dumps == 0 || c.Published.Queries != c.Published.Dumps {
		t.Errorf("counters %+v: want queries that are answered by dumps", c.Published)
	}
	some, err := s.Query(t.Context(), id, kvevent.QueryRequest{StartID: 2, HasStart: true, EndID: 4, HasEnd: true})
	if err != nil || some.Kind != kvevent.QueryEvents || some.LastEventID != 4 || len(some.Events) != 3 || some.Events[0].ID != 2 {
		t.Errorf("events 2 to 4: %+v, %v", some, err)
	}
	late, err := s.Query(t.Context(), id, kvevent.QueryRequest{StartID: 1 << 40, HasStart: true})
	if err != nil || late.Kind != kvevent.QueryTooNew || late.LastEventID < last {
		t.Errorf("an event of the future: %+v, %v", late, err)
	}
	if _, err := s.Query(t.Context(), 1, kvevent.QueryRequest{}); err == nil {
		t.Error("an unknown publisher is answered")
	}
}

// TestNobodyListens: neither Follow nor Unfollow nor Close waits for a router, and sockets
// that cannot be opened are tried again.
func TestNobodyListens(t *testing.T) {
	s := newSource(t, Options{MaxRanks: 3})
	target := source.Engine{
		Worker: 1, Model: "m", BlockSize: blockSize,
		Ranks: []source.EngineRank{{Events: "ipc:///" + strings.Repeat("x", 200)}, {Rank: 1, Events: "tcp://127.0.0.1:1"}},
	}
	follow(t, s, target)
	sourcetest.Eventually(t, "the sockets are opened again", func() bool { return s.Counters().Reopened >= 2 })
	other := target
	other.Worker = 2
	if err := s.Follow(other); err == nil || !strings.Contains(err.Error(), "4 followed ranks, want at most 3") {
		t.Errorf("a fourth rank: %v", err)
	}
	s.Unfollow(1)
	other.Ranks = other.Ranks[1:]
	follow(t, s, other)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Follow(other); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if c := s.Counters(); c.Engines != 0 || c.Ranks != 0 || c.Followed.Known != 0 {
		t.Errorf("counters %+v after Close", c)
	}
}

// TestFollowChecksFields: the error names the field.
func TestFollowChecksFields(t *testing.T) {
	s := newSource(t, Options{})
	for want, change := range map[string]func(*source.Engine){
		"engine model":              func(e *source.Engine) { e.Model = "" },
		"engine endpoint":           func(e *source.Engine) { e.Card.Endpoint = strings.Repeat("x", 2049) },
		"engine ranks: 0":           func(e *source.Engine) { e.Ranks = nil },
		"rank 0 comes twice":        func(e *source.Engine) { e.Ranks = append(e.Ranks, e.Ranks[0]) },
		"events endpoint of rank 0": func(e *source.Engine) { e.Ranks[0].Events = "tcp://a" },
		"replay endpoint of rank 0": func(e *source.Engine) { e.Ranks[0].Replay = "http://a:1" },
		"block size":                func(e *source.Engine) { e.BlockSize = 0 },
		"id 0":                      func(e *source.Engine) { e.Worker = 0 },
	} {
		e := source.Engine{Worker: 1, Model: "m", BlockSize: 16, Ranks: []source.EngineRank{{Events: "tcp://a:5557"}}}
		change(&e)
		if err := s.Follow(e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if c := s.Counters(); c.Engines != 0 {
		t.Errorf("%d engines are followed after errors", c.Engines)
	}
}
