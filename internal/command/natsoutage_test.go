package command

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

// natsWorld is a NATS server, a publisher and a router, each of which can be
// stopped and started again while the owner's blocks change.
type natsWorld struct {
	t       *testing.T
	durable bool
	dir     string
	port    int
	server  *nats.Embedded

	mu     sync.Mutex
	feed   *nats.Feed
	last   uint64
	blocks map[kv.SequenceHash]bool

	nats      *nats.Conn
	router    *router.Router
	endRouter func()
}

var worldOwner = kv.WorkerOwner(kv.Worker{ID: 7})

func newNATSWorld(t *testing.T, durable bool) *natsWorld {
	w := &natsWorld{t: t, durable: durable, dir: t.TempDir(), blocks: make(map[kv.SequenceHash]bool)}
	w.startServer()
	t.Cleanup(func() {
		// The parts end while there is a server to say goodbye to.
		w.stopRouter()
		w.stopPublisher()
		w.server.Close()
	})
	return w
}

func (w *natsWorld) startServer() {
	w.t.Helper()
	o := nats.EmbeddedOptions{Port: w.port, Token: "secret"}
	if w.durable {
		o.StoreDir = w.dir
	}
	var err error
	if w.server, err = nats.StartEmbedded(o); err != nil {
		w.t.Fatal(err)
	}
	at, err := url.Parse(w.server.URL())
	if err != nil {
		w.t.Fatal(err)
	}
	if w.port, err = strconv.Atoi(at.Port()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *natsWorld) stopServer() { w.server.Close() }

func (w *natsWorld) startPublisher() {
	w.t.Helper()
	o := nats.Options{URL: w.server.URL(), AnnounceEvery: 20 * time.Millisecond, ReconnectWait: 20 * time.Millisecond,
		ConnectTimeout: 100 * time.Millisecond}
	if w.durable {
		o.JetStream = &nats.JetStream{}
	}
	var err error
	if w.nats, err = nats.Connect(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	feed, err := w.nats.NewFeed(worldOwner, publisher.Meta{Model: "m", BlockSize: 16})
	if err != nil {
		w.t.Fatal(err)
	}
	// A new publisher numbers its events from 1; the owner's blocks are its state.
	w.mu.Lock()
	w.feed, w.last = feed, 0
	w.mu.Unlock()
	if err := feed.Attach(w); err != nil {
		w.t.Fatal(err)
	}
}

func (w *natsWorld) stopPublisher() {
	if w.nats == nil {
		return
	}
	// The server may be away, which the error says.
	if err := w.nats.Close(); err != nil {
		w.t.Log(err)
	}
	w.nats = nil
}

func (w *natsWorld) startRouter() {
	w.t.Helper()
	transport, err := natssource.Connect(natssource.Options{URL: w.server.URL(), JetStream: w.durable, ConnectTimeout: 100 * time.Millisecond})
	if err != nil {
		w.t.Fatal(err)
	}
	o := router.Options{}
	if w.durable {
		o.Snapshots = transport
	}
	if w.router, err = router.New(o, transport); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.router.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	w.endRouter = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := transport.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *natsWorld) stopRouter() {
	if w.endRouter != nil {
		w.endRouter()
	}
}

// Owner, Status and Snapshot make the world a publisher.Source.
func (w *natsWorld) Owner() kv.Owner { return worldOwner }

func (w *natsWorld) Status() publisher.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return publisher.Status{LastEventID: w.last, Digest: w.digestLocked(), Blocks: uint64(len(w.blocks)), Health: kvevent.HealthExact}
}

func (w *natsWorld) digestLocked() (sum uint64) {
	for h := range w.blocks {
		sum += kv.Digest(h, kv.TierDevice)
	}
	return sum
}

// stored returns the event of a block that begins a sequence.
func stored(id uint64, h kv.SequenceHash) kvevent.RouterEvent {
	return kvevent.RouterEvent{Owner: worldOwner, ID: id, Kind: kvevent.Stored,
		Blocks: []kvevent.StoredBlock{{Hash: h, Local: kv.LocalHash(h)}}}
}

func (w *natsWorld) Snapshot() ([]kvevent.RouterEvent, uint64, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var events []kvevent.RouterEvent
	for _, h := range slices.Sorted(maps.Keys(w.blocks)) {
		events = append(events, stored(uint64(len(events)), h))
	}
	return events, w.last, w.digestLocked()
}

// change stores n new blocks, an event each, and removes one of three.
func (w *natsWorld) change(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		w.last++
		h := kv.SequenceHash(kv.RandomID())
		w.blocks[h] = true
		w.feed.Publish([]kvevent.RouterEvent{stored(w.last, h)})
		if w.last%3 == 0 {
			w.last++
			delete(w.blocks, h)
			w.feed.Publish([]kvevent.RouterEvent{{Owner: worldOwner, ID: w.last, Kind: kvevent.Removed, Removed: []kv.SequenceHash{h}}})
		}
	}
}

// converged waits until the router says exact and holds what the owner holds.
func (w *natsWorld) converged(when string) {
	w.t.Helper()
	equal := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		dump := routertest.Dump(w.router)
		return len(dump) == 1 && len(dump[0].Blocks) == len(w.blocks) &&
			!slices.ContainsFunc(dump[0].Blocks, func(b routertest.BlockDump) bool { return !w.blocks[b.Hash] })
	}
	w.until(when, func() bool { return w.router.Quality() == feed.Exact && equal() })
}

// until waits for a condition.
func (w *natsWorld) until(what string, condition func() bool) {
	w.t.Helper()
	waittest.Pass(w.t, func() string {
		if condition() {
			return ""
		}
		return fmt.Sprintf("%s; router %+v", what, w.router.Stats())
	})
}

// TestNothingIsLostSilently: through every order of outages the router ends with
// exactly what the owner holds, and never says exact of anything else for long.
func TestNothingIsLostSilently(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable=%v", durable), func(t *testing.T) {
			w := newNATSWorld(t, durable)
			w.startPublisher()
			w.startRouter()
			w.change(300)
			w.converged("from the start")

			w.stopServer()
			w.until("the router to notice", func() bool { return w.router.Quality() != feed.Exact })
			w.change(200)
			w.startServer()
			w.converged("after the server was away")
			if got := w.router.Stats().Transport.Reconnects; got != 1 {
				t.Errorf("%d reconnects, want 1", got)
			}

			w.stopServer()
			w.change(6000) // more than the journal holds
			w.startServer()
			w.converged("after more was missed than the journal holds")

			w.stopServer()
			w.stopPublisher()
			w.startPublisher()
			w.change(50)
			w.startServer()
			w.converged("after the publisher was restarted meanwhile")

			w.stopRouter()
			w.change(100)
			w.startRouter()
			w.converged("after the router was restarted")

			w.stopServer()
			w.stopRouter()
			w.stopPublisher()
			w.startRouter()
			w.startPublisher()
			w.change(10)
			w.startServer()
			w.converged("after all three were restarted")
		})
	}
}

// TestDurableRouterReadsOn: a router that was stopped begins with its snapshot
// and gets what happened meanwhile from the stream; it asks the publisher nothing,
// also when the server was restarted in between.
func TestDurableRouterReadsOn(t *testing.T) {
	w := newNATSWorld(t, true)
	w.startPublisher()
	w.startRouter()
	w.change(500)
	w.converged("from the start")
	w.stopRouter()
	w.change(700)
	w.until("the events to be sent", func() bool { return w.feedStats().Unsent == 0 })
	w.startRouter()
	w.converged("after its restart")
	if s := w.router.Stats(); s.Feeds.Queries != 0 || s.Snapshots.Loaded != 1 || s.Feeds.Gaps != 0 {
		t.Errorf("feeds %+v, snapshots %+v; want no question", s.Feeds, s.Snapshots)
	}
	w.stopRouter()
	w.change(50)
	w.until("the events to be sent", func() bool { return w.feedStats().Unsent == 0 })
	w.stopServer()
	w.startServer()
	w.until("the publisher to be back", w.nats.Connected)
	w.startRouter()
	w.converged("after both were restarted")
	if s := w.router.Stats(); s.Feeds.Dumps != 0 || s.Snapshots.Loaded != 1 {
		t.Errorf("feeds %+v, snapshots %+v; want no dump", s.Feeds, s.Snapshots)
	}
}

func (w *natsWorld) feedStats() nats.FeedStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.feed.Stats()
}
