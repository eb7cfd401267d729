package dynamo

import (
	"context"
	"errors"
	"maps"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// cluster is a NATS server with a router that follows the workers of a
// directory, and the workers' own connection.
type cluster struct {
	*directory
	router    *router.Router
	transport *Source
	conn      *nats.Conn
	mu        sync.Mutex // of the workers
}

func newCluster(t *testing.T, change func(*Options)) *cluster {
	t.Helper()
	s := sourcetest.StartServer(t)
	c := &cluster{directory: newDirectory(t)}
	var err error
	if c.conn, err = nats.Connect(s.ClientURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.conn.Close)
	own, err := natssource.Connect(natssource.Options{URL: s.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Directory: c.dir, Endpoint: endpoint, PollEvery: 10 * time.Millisecond}
	if change != nil {
		change(&o)
	}
	if c.transport, err = Open(o, own); err != nil {
		t.Fatal(err)
	}
	both, err := registry.New(registry.Options{}, own, c.transport)
	if err != nil {
		t.Fatal(err)
	}
	if c.router, err = router.New(router.Options{}, both); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.router.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := errors.Join(both.Close(), c.transport.Close(), c.transport.Close(), own.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// answer is w's, whose events the test makes at the same time.
func (c *cluster) answer(w *fakeWorker) func(*kvevent.DynamoQuery) *kvevent.QueryReply {
	return func(q *kvevent.DynamoQuery) *kvevent.QueryReply {
		c.mu.Lock()
		defer c.mu.Unlock()
		return w.answer(q)
	}
}

// does has the worker change something, without a word to anybody.
func (c *cluster) does(change func() kvevent.RouterEvent) kvevent.RouterEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return change()
}

func (c *cluster) publish(publisher uint64, events ...kvevent.RouterEvent) {
	c.t.Helper()
	e := kvevent.Envelope{PublisherID: publisher, Events: events}
	data := kvevent.AppendDynamoEnvelope(nil, &e, kvevent.ClearWorker)
	if err := errors.Join(c.conn.Publish(endpoint.Subject(topic), data), c.conn.Flush()); err != nil {
		c.t.Fatal(err)
	}
}

// shows reports whether the router's index has exactly what w holds.
func (c *cluster) shows(w *fakeWorker) bool {
	for _, o := range routertest.Dump(c.router) {
		if o.Owner != kv.WorkerOwner(w.worker) {
			continue
		}
		got := make(held)
		for _, b := range o.Blocks {
			for _, tier := range kv.Tiers {
				if b.Tiers.Has(tier) {
					got[pair{b.Hash, tier}] = true
				}
			}
		}
		return maps.Equal(got, w.truth())
	}
	return false
}

func (c *cluster) quality(w *fakeWorker) feed.Quality {
	for _, i := range c.router.Workers() {
		if i.Worker == w.worker {
			return i.Quality
		}
	}
	return ""
}

// TestRouterFollowsWorkersOfDynamo: from the directory, the event plane and the
// request plane to the router's index: a history from before, live events, lost
// ones, two sources at once, a rank that cannot be asked, and the end.
func TestRouterFollowsWorkersOfDynamo(t *testing.T) {
	c := newCluster(t, nil)
	w := newFakeWorker(kv.Worker{ID: 1<<64 - 5}, 4)
	for i := range kv.SequenceHash(10) {
		w.store(kv.Tier(i%3), 0, 100*(i+1), 1, kv.LocalHash(i))
	}
	s := newRecoveryServer(t, c.answer(w))
	o := origin{publisher: 21, worker: w.worker, target: s.target()}
	card := c.card(uint64(w.worker.ID), 2)
	sourcetest.Eventually(t, "two ranks known, of which nothing is known", func() bool {
		return len(c.router.Workers()) == 2 && c.router.Quality() != feed.Exact
	})
	c.source(o)
	sourcetest.Eventually(t, "the history known", func() bool { return c.shows(w) && c.quality(w) == feed.Exact })
	c.publish(21, c.does(func() kvevent.RouterEvent { return w.store(kv.TierDevice, 100, 5000, 7, 8) }))
	sourcetest.Eventually(t, "a live event applied", func() bool { return c.shows(w) })
	for range 6 { // more than the ring holds
		c.does(func() kvevent.RouterEvent { return w.remove(kv.TierDevice, w.leavesOn(kv.TierDevice)[0]) })
		c.does(func() kvevent.RouterEvent { return w.store(kv.TierHost, 0, kv.SequenceHash(9000+w.last()), 3) })
	}
	c.publish(21, c.does(func() kvevent.RouterEvent { return w.store(kv.TierDevice, 0, 6000, 9) }))
	sourcetest.Eventually(t, "a gap repaired", func() bool { return c.shows(w) && c.quality(w) == feed.Exact })

	// The other rank's first events come before its record, which has no target.
	other := newFakeWorker(kv.Worker{ID: w.worker.ID, Rank: 1}, 4)
	c.publish(22, other.store(kv.TierDevice, 0, 100, 1, 2, 3), other.remove(kv.TierDevice, 102))
	c.source(origin{publisher: 22, worker: other.worker})
	sourcetest.Eventually(t, "the other rank known from its first event on", func() bool {
		return c.shows(other) && c.quality(other) == feed.Exact
	})

	second := o
	second.publisher = 23
	path := c.source(second)
	empty := newFakeWorker(w.worker, 1)
	sourcetest.Eventually(t, "a rank with two sources emptied", func() bool {
		return c.shows(empty) && c.quality(w) == feed.Degraded
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	sourcetest.Eventually(t, "the one that is left believed again", func() bool { return c.shows(w) && c.quality(w) == feed.Exact })

	for _, i := range c.router.Workers() {
		if i.Card.Source != "dynamo" || i.Card.Silent || i.Card.DeviceBlocks != 512 || i.Card.MaxBatchedTokens != 8192 {
			t.Errorf("worker %s: card %+v, want its source to be dynamo, and what its model card says", i.Worker, i.Card)
		}
	}
	if s := c.router.Sources(); len(s) != 1 || s[0].Name != "dynamo" || s[0].Gauges["exact_ranks"] != 2 || s[0].Counters["gaps"] != 1 {
		t.Errorf("sources %+v", s)
	}
	metrics := httptest.NewRecorder()
	c.router.Metrics().Handler().ServeHTTP(metrics, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`blockyard_router_source{gauge="ranks",source="dynamo"} 2`, `blockyard_router_source_total{counter="ambiguous",source="dynamo"} 1`} {
		if !strings.Contains(metrics.Body.String(), want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if got := c.transport.Counters(); got.Ranks != 2 || got.ExactRanks != 2 || got.Gaps != 1 || got.Ambiguous != 1 || got.Orphans != 0 {
		t.Errorf("counters %+v", got)
	}
	for _, f := range c.router.Feeds() {
		if f.Counters.Gaps+f.Counters.Divergences != 0 {
			t.Errorf("between transport and index: %+v", f)
		}
	}
	if err := os.Remove(card); err != nil {
		t.Fatal(err)
	}
	sourcetest.Eventually(t, "the worker gone", func() bool { return len(c.router.Workers()) == 0 })
	if _, err := c.transport.Query(t.Context(), 1, kvevent.QueryRequest{}); !errors.Is(err, errNoPublisher) {
		t.Errorf("a query about nobody: %v", err)
	}
}

// TestTransportCountsWhatItCannotRead: none of it costs anything else.
func TestTransportCountsWhatItCannotRead(t *testing.T) {
	c := newCluster(t, func(o *Options) { o.MaxBlocks = 3 })
	w := newFakeWorker(kv.Worker{ID: 9}, 4)
	c.card(9, 1)
	c.source(origin{publisher: 21, worker: w.worker})
	if err := c.conn.Publish(endpoint.Subject(topic), []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	c.put("mdc", "dynamo/backend/generate/ff", "nonsense")
	c.publish(21, w.store(kv.TierDevice, 0, 100, 1, 2))
	sourcetest.Eventually(t, "the good event applied", func() bool { return c.shows(w) })
	c.publish(21, w.store(kv.TierDevice, 0, 200, 3, 4))
	sourcetest.Eventually(t, "what is too much refused", func() bool {
		got := c.transport.Counters()
		return got.Undecodable == 1 && got.BadRecords == 1 && got.Refused == 1 && c.quality(w) == feed.Degraded
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{
		{Endpoint: endpoint},
		{Directory: "x"},
		{Directory: "x", Endpoint: endpoint, PollEvery: -1},
		{Directory: "x", Endpoint: endpoint, MaxRanks: -1},
	} {
		if _, err := Open(o, nil); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}
