package agent

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

func namespaceNumber(i int) kv.Namespace {
	ns := testNamespace()
	ns.Weights = fmt.Sprint(i)
	return ns
}

// noSession opens a pool for nobody.
func noSession(*blockmgr.Pool) error { return nil }

// testOutputs publish on n, if there is one, and keep no checkpoints.
func testOutputs(n *nats.Conn) *outputs {
	return &outputs{cfg: &Config{Events: EventOptions{NoCheckpoints: true}}, nats: n, log: zap.NewNop()}
}

// fakePools is a source of pools that nobody retires.
type fakePools func(kv.Namespace) (*blockmgr.Pool, error)

func (f fakePools) open(ns kv.Namespace, _ bool) (*blockmgr.Pool, error) { return f(ns) }
func (fakePools) closed(kv.NamespaceID)                                  {}

func TestPoolThatCannotBeOpenedLeavesNoStreamAndNoFeed(t *testing.T) {
	server, err := nats.StartEmbedded(nats.EmbeddedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	n, err := nats.Connect(t.Context(), nats.Options{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	h := newEventHub("node", testOutputs(n), zap.NewNop())
	ns, broken := namespaceNumber(1), errors.New("no room")
	var o *ownerStream
	_, _, err = h.openPool(&ns, fakePools(func(kv.Namespace) (*blockmgr.Pool, error) {
		// What a pool recovers before it fails is still taken.
		h.BlockStored(ns.ID(), kv.TierDisk, blockmgr.Block{Seq: 1})
		o = h.poolStream(ns.ID())
		return nil, broken
	}), noSession)
	if !errors.Is(err, broken) || len(h.poolStreams()) != 0 {
		t.Errorf("error %v, %d streams: want %v and none", err, len(h.poolStreams()), broken)
	}
	if err := o.nats.Load().Attach(statusSource{o.stream}); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("the feed of the refused pool: got error %v, want %v", err, publisher.ErrClosed)
	}
	h.BlockRemoved(ns.ID(), kv.TierDisk, blockmgr.Block{Seq: 1})
	if _, _, err := h.openPool(&ns, fakePools(func(kv.Namespace) (*blockmgr.Pool, error) { return new(blockmgr.Pool), nil }), noSession); err != nil {
		t.Errorf("the next try: %v", err)
	}
	h.closePools()
}

// A session of a namespace whose pool another session is opening waits for that,
// and shares its fate.
func TestSessionsThatComeTogetherShareAPool(t *testing.T) {
	for _, want := range []error{nil, errors.New("no room")} {
		h := newEventHub("node", testOutputs(nil), zap.NewNop())
		ns, began, goOn := namespaceNumber(1), make(chan struct{}), make(chan struct{})
		var sessions sync.WaitGroup
		sessions.Go(func() {
			_, _, err := h.openPool(&ns, fakePools(func(kv.Namespace) (*blockmgr.Pool, error) {
				close(began)
				<-goOn
				return new(blockmgr.Pool), want
			}), noSession)
			if !errors.Is(err, want) {
				t.Errorf("got error %v, want %v", err, want)
			}
		})
		<-began
		e, made, _ := h.poolEntry(ns.ID())
		if made {
			t.Error("the second session made an entry of its own")
		}
		select {
		case <-e.opened:
			t.Error("the second session does not wait")
		default:
		}
		close(goOn)
		<-e.opened
		if !errors.Is(e.err, want) {
			t.Errorf("the second session got error %v, want %v", e.err, want)
		}
		sessions.Wait()
	}
}

// A pool without room, or one that gave its room up, looks for some whenever a
// session begins.
func TestEverySessionAsksForItsPool(t *testing.T) {
	h := newEventHub("node", testOutputs(nil), zap.NewNop())
	ns, asked, pool := namespaceNumber(1), 0, new(blockmgr.Pool)
	for range 3 {
		got, stream, err := h.openPool(&ns, fakePools(func(kv.Namespace) (*blockmgr.Pool, error) { asked++; return pool, nil }), noSession)
		if err != nil {
			t.Fatal(err)
		}
		if id := stream.Owner().ID; got != pool || id != poolID("node", ns.ID()) {
			t.Errorf("got pool %p with id %d", got, id)
		}
	}
	if asked != 3 || len(h.poolStreams()) != 1 {
		t.Errorf("the pool was asked for %d times and has %d streams, want 3 and 1", asked, len(h.poolStreams()))
	}
}

func TestRefusedNamespaceLeavesNothing(t *testing.T) {
	a := startAgent(t, testConfig(t))
	h := helloOf(1)
	h.Namespace.Layout = "layer_separate"
	_, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h})
	wantRefused(t, err, proto.CodeNamespace)
	if err != nil && !strings.Contains(err.Error(), `layout "layer_separate"`) {
		t.Errorf("error %v does not name the layout", err)
	}
	a.server.manager.Close() // from now on no pool opens
	for i := range 5 {
		h := helloOf(1)
		h.Namespace = namespaceNumber(i)
		_, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h})
		wantRefused(t, err, proto.CodeInternal)
	}
	if s := a.Stats(); len(s.Streams) != 0 || s.Sessions != 0 {
		t.Errorf("%d streams and %d sessions, want none", len(s.Streams), s.Sessions)
	}
}

func TestNamespaceFindsRoomOnceTheOthersHaveLeft(t *testing.T) {
	cfg := testConfig(t)
	cfg.HostBytes, cfg.DiskBytes = cfg.ExtentBytes, 0
	a := startAgent(t, cfg)
	dial := func(worker uint64, ns kv.Namespace) *proto.SchedulerClient {
		h := helloOf(worker)
		h.Namespace = ns
		c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	granted := func(c *proto.SchedulerClient, id uint64) int {
		r := proto.RequestID{ID: id}
		if err := c.Open(r, "", "", "", prompt(1, 2)); err != nil {
			t.Fatal(err)
		}
		got, err := c.Store(t.Context(), r, 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.CloseRequest(r); err != nil {
			t.Fatal(err)
		}
		return len(got.Grants)
	}
	first, second := dial(1, namespaceNumber(1)), dial(2, namespaceNumber(2))
	if one, two := granted(first, 1), granted(second, 1); one != 2 || two != 0 {
		t.Errorf("grants: %d and %d, want 2 for the first alone", one, two)
	}
	if err := first.Bye(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	next := uint64(1)
	eventually(t, "the connected second namespace finds room when the first has left", func() bool {
		next++
		return granted(second, next) == 2
	})
}

// The engine can do nothing about a feed that the agent cannot make, and must
// not be told that its endpoint is bad.
func TestRankErrorsSayWhoseTheyAre(t *testing.T) {
	server, err := nats.StartEmbedded(nats.EmbeddedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	n, err := nats.Connect(t.Context(), nats.Options{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
	hello := helloOf(1)
	_, err = newEventHub("node", testOutputs(n), zap.NewNop()).startRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), rankEngine{})
	if err == nil || refusalOf(err).Code != proto.CodeInternal {
		t.Errorf("feed: got error %v, want %s", err, proto.CodeInternal)
	}
	hello.EventsEndpoint = "carrier pigeon"
	hello.Namespace.BlockSize = 1 << 20
	_, err = newEventHub("node", testOutputs(nil), zap.NewNop()).startRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), rankEngine{})
	if err == nil || refusalOf(err).Code != proto.CodeRange {
		t.Errorf("endpoint: got error %v, want %s", err, proto.CodeRange)
	}
}
