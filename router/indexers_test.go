package router_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/remote"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// indexBus carries questions to the only router that serves. As a replica.Bus it carries nothing.
type indexBus struct {
	mu     sync.Mutex
	answer func([]byte, time.Time) ([]byte, error)
}

var errNobodyServes = errors.New("nobody serves")

func (*indexBus) Cluster() string { return "c" }

func (*indexBus) Connected() bool { return true }

func (*indexBus) Publish(string, []byte) error { return nil }

func (*indexBus) Subscribe(string, chan<- []byte) (stop func(), dropped func() uint64, err error) {
	return func() {}, func() uint64 { return 0 }, nil
}

func (*indexBus) Answer(string, func([]byte) ([]byte, error)) (stop func(), err error) {
	return func() {}, nil
}

func (b *indexBus) set(answer func([]byte, time.Time) ([]byte, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

func (b *indexBus) AnswerGroup(_, _ string, _ int, answer func([]byte, time.Time) ([]byte, error)) (stop func(), dropped func() uint64, err error) {
	b.set(answer)
	return func() { b.set(nil) }, func() uint64 { return 0 }, nil
}

func (b *indexBus) Request(_ context.Context, _ string, request []byte) ([]byte, error) {
	b.mu.Lock()
	answer := b.answer
	b.mu.Unlock()
	if answer == nil {
		return nil, errNobodyServes
	}
	return answer(request, time.Now())
}

// serves reports whether a router serves.
func (b *indexBus) serves() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answer != nil
}

func serveIndex(c *config.Config) { c.ServeIndexer = true }

// TestARouterServesOnceItHasTheBlocksOfAllWorkers: and in any case half a minute after the first worker.
func TestARouterServesOnceItHasTheBlocksOfAllWorkers(t *testing.T) {
	for name, released := range map[string]bool{"released": true, "held": false} {
		t.Run(name, func(t *testing.T) {
			bus := &indexBus{}
			routertest.OnBench(t, router.Options{Config: routertest.Configured(serveIndex), Indexers: bus}, func(b *routertest.Bench) {
				b.Pass(time.Minute)
				if bus.serves() {
					t.Fatal("serves without a worker")
				}
				one, two := b.Publisher(11, sourcetest.WorkerOwner(1), 0), b.Publisher(12, sourcetest.WorkerOwner(2), 0)
				two.Store(kv.TierDevice, sourcetest.Tokens(1, 2))
				b.Every(1, one)
				if b.Router.Quality() != feed.Exact || bus.serves() {
					t.Fatalf("serves %t with quality %s a second after the first worker", bus.serves(), b.Router.Quality())
				}
				b.Transport.HoldQueries(true)
				b.Every(20, one, two)
				if bus.serves() {
					t.Fatal("serves without the blocks of a worker")
				}
				if released {
					b.Transport.HoldQueries(false)
					b.Every(5, one, two)
				} else {
					b.Every(12, one, two)
					b.Transport.HoldQueries(false)
				}
				if !bus.serves() {
					t.Errorf("does not serve, quality %s", b.Router.Quality())
				}
			})
			if bus.serves() {
				t.Error("serves after the end")
			}
		})
	}
}

// TestADrainingRouterDoesNotServe: its feeds have ended, so that its index is stale.
func TestADrainingRouterDoesNotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, transport := &indexBus{}, sourcetest.NewTransport()
		o := router.Options{Indexers: bus, Replicas: bus, Config: routertest.Configured(func(c *config.Config) {
			c.ServeIndexer, c.RouterReplicaSync = true, true
		})}
		r, err := router.New(o, transport)
		if err != nil {
			t.Fatal(err)
		}
		ctx, drain := context.WithCancel(t.Context())
		sharing, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := r.RunSharing(ctx, sharing); err != nil {
				t.Error(err)
			}
		})
		transport.Send(transport.Publisher(11, sourcetest.WorkerOwner(1), 0).Announce())
		<-time.After(3 * time.Second)
		if !bus.serves() {
			t.Error("does not serve")
		}
		drain()
		synctest.Wait()
		if bus.serves() {
			t.Error("serves from an index without feeds")
		}
		end()
		running.Wait()
	})
}

// TestQualityIsOfTheRequestsOwnAnswer: another request, which is answered while the first one waits, does
// not change it.
func TestQualityIsOfTheRequestsOwnAnswer(t *testing.T) {
	bus, c := &indexBus{}, routertest.HalfAStep()
	c.UseRemoteIndexer = true
	routertest.OnBench(t, router.Options{Config: c, Indexers: bus}, func(b *routertest.Bench) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		p.Meta.Card.MaxBatchedTokens = sourcetest.BlockSize
		b.Send(p.Announce())
		h := api.New(b.Router, api.Options{}).Handler()
		b.Route(h, "r1", routertest.NewBody("", 1))
		quality := make(chan feed.Quality, 1)
		go func() { // no router serves yet
			m, err := b.Router.FindBestMatch(b.T.Context(), &router.Request{Tokens: sourcetest.Tokens(2)})
			if err != nil {
				t.Error(err)
			}
			quality <- m.Quality
		}()
		synctest.Wait()
		served, err := remote.Serve(bus, func(dst *index.Matches, _ *remote.Query) (feed.Quality, bool) {
			dst.Members, dst.Hits = b.Model().Index().Members(), nil
			return feed.Exact, true
		})
		if err != nil {
			t.Fatal(err)
		}
		defer served.Stop()
		if _, err := b.Model().Decide().Overlaps(&router.Request{Tokens: sourcetest.Tokens(3)}); err != nil {
			t.Error(err)
		}
		if q := b.Router.Quality(); q != feed.Exact {
			t.Errorf("quality %s of the last answer", q)
		}
		b.Route(h, "r1", `{"method":"mark_free"}`)
		if q := <-quality; q != feed.Fallback {
			t.Errorf("quality %s of a decision without an answer", q)
		}
	})
}
