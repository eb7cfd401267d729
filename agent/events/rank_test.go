package events

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// TestPanicWhileAStreamOpensFreesItsPort: what a session had opened for its events when it
// panicked is closed, so that its successor finds the port free.
func TestPanicWhileAStreamOpensFreesItsPort(t *testing.T) {
	hello := agenttest.Hello(1)
	hello.EventsEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
	engine := Engine{Guard: func(do func() error) error { return do() }, Gauges: func() (EngineGauges, bool) { return EngineGauges{}, false }}
	panicked := func() (reason any) {
		defer func() { reason = recover() }()
		// It has no connection, which is noticed when the ports are open.
		out := testOutputs(new(nats.Conn))
		_, _ = newHub(out, zap.NewNop()).StartRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), engine)
		return nil
	}()
	if panicked == nil {
		t.Fatal("nothing panicked; the test shows nothing")
	}
	r, err := newHub(testOutputs(nil), zap.NewNop()).StartRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), engine)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	if r.warning != "" {
		t.Errorf("warning %q, want none", r.warning)
	}
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
	hello := agenttest.Hello(1)
	_, err = newHub(testOutputs(n), zap.NewNop()).StartRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), Engine{})
	if err == nil || codeOf(err) != proto.CodeInternal {
		t.Errorf("feed: got error %v, want %s", err, proto.CodeInternal)
	}
	hello.EventsEndpoint = "carrier pigeon"
	hello.Namespace.BlockSize = 1 << 20
	_, err = newHub(testOutputs(nil), zap.NewNop()).StartRank(&hello, residency.NewStream(kv.PoolOwner(1), nil), Engine{})
	if err == nil || codeOf(err) != proto.CodeRange {
		t.Errorf("endpoint: got error %v, want %s", err, proto.CodeRange)
	}
}

// testOutputs publish on n, if there is one, and keep no checkpoints.
func testOutputs(n *nats.Conn) *outputs {
	return &outputs{cfg: &Config{Options: Options{NoCheckpoints: true}}, nats: n, log: zap.NewNop()}
}

// Counters of what ended stay in the totals, gauges of it do not: a counter that
// falls is taken for a restart.
func TestTotalsKeepWhatEndedOutputsCounted(t *testing.T) {
	h := newHub(testOutputs(nil), zap.NewNop())
	pool := residency.NewStream(kv.PoolOwner(1), nil)
	hello := agenttest.Hello(7)
	hello.ConsolidatedEndpoint = fmt.Sprintf("tcp://127.0.0.1:%d", agenttest.FreePort(t))
	r, err := h.StartRank(&hello, pool, Engine{Guard: func(do func() error) error { return do() }, Gauges: func() (EngineGauges, bool) { return EngineGauges{}, false }})
	if err != nil {
		t.Fatal(err)
	}
	r.outputs[0].Sink.Publish([]kvevent.RouterEvent{{Owner: kv.PoolOwner(9)}})
	before := eventTotals(h)
	r.Stop()
	after := eventTotals(h)
	if before.ZMQ.Foreign == 0 {
		t.Fatal("the sink counted nothing; the test shows nothing")
	}
	counted := map[string]float64{}
	metric.Each(&after.ZMQ, func(f *metric.Field, v float64) { counted[f.Name] = v })
	metric.Each(&before.ZMQ, func(f *metric.Field, v float64) {
		if f.Kind == metric.Counter && counted[f.Name] < v {
			t.Errorf("%s fell from %v to %v when the rank ended", f.Name, v, counted[f.Name])
		}
	})
	if after.ZMQ.Said != 0 || after.ZMQ.Subscribers != 0 {
		t.Errorf("an ended sink has said %d blocks to %d subscribers", after.ZMQ.Said, after.ZMQ.Subscribers)
	}
}

func eventTotals(h *Hub) Totals {
	return h.Snapshot().Totals
}

func TestStreamsOfTheAgentsOwnAccordHaveTheHostThatIsSet(t *testing.T) {
	hello := proto.Hello{EventsEndpoint: "tcp://*:5557"}
	for host, want := range map[string]string{"": "tcp://*:6557", "*": "tcp://*:6557", "127.0.0.1": "tcp://127.0.0.1:6557", "::1": "tcp://[::1]:6557"} {
		o := &outputs{cfg: &Config{Options: Options{ZMQ: true, ZMQHost: host}}}
		if got, err := o.sinkEndpoint(&hello); got != want || err != nil {
			t.Errorf("host %q: %q, %v; want %q", host, got, err, want)
		}
	}
}

// Other machines cannot connect to "all addresses".
func TestURLOfAServerOnAllAddressesHasAHost(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ server, host, want string }{
		{"nats://token@127.0.0.1:4222", "", "nats://token@127.0.0.1:4222"},
		{"nats://token@0.0.0.0:4222", "", "nats://token@" + name + ":4222"},
		{"nats://token@[::]:4222", "", "nats://token@" + name + ":4222"},
		{"nats://token@[::]:4222", "node-7.example", "nats://token@node-7.example:4222"},
	} {
		if got, err := advertised(c.server, c.host); got != c.want || err != nil {
			t.Errorf("%s as %q: %q, %v; want %q", c.server, c.host, got, err, c.want)
		}
	}
}

// codeOf is the code that an engine is told.
func codeOf(err error) string {
	if r := new(refusal.Error); errors.As(err, &r) {
		return r.Code
	}
	return proto.CodeInternal
}

// A pool that ends, or cannot be opened, is gone for the routers, and its totals stay.
func TestFeedOfAPoolThatEndsIsClosed(t *testing.T) {
	server, err := nats.StartEmbedded(nats.EmbeddedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	h, err := Open(t.Context(), Config{NATSURL: server.URL(), Cluster: "test"}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ns := agenttest.Namespace()
	p, err := h.OpenPool(kv.PoolOwner(1), &ns, kvevent.ModelCard{})
	if err != nil {
		t.Fatal(err)
	}
	h.BlockStored(ns.ID(), kv.TierHost, blockmgr.Block{Seq: 1})
	p.End()
	if err := p.nats.Load().Attach(p.stream); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("its feed: %v, want %v", err, publisher.ErrClosed)
	}
	h.BlockRemoved(ns.ID(), kv.TierHost, blockmgr.Block{Seq: 1})
	if h.pool(ns.ID()) != nil || h.ended.Streams.Blocks != 1 || h.ended.Feeds.Announcements == 0 {
		t.Errorf("totals of what has ended: %+v", h.ended)
	}
}

// TestAPoolsStreamNamesTheGroups: the engine's group 0 is a window here, and its group 1 the primary
// one. Sessions hear of the primary group's evictions alone.
func TestAPoolsStreamNamesTheGroups(t *testing.T) {
	ns := agenttest.Namespace()
	ns.Groups = []kv.Group{
		{Kind: "sliding", Window: 8, BlockSize: ns.BlockSize, BlockBytes: 64, Layers: 1},
		{Kind: "full", BlockSize: ns.BlockSize, BlockBytes: 64, Layers: 1},
	}
	h, err := Open(t.Context(), Config{Cluster: "test"}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	p, err := h.OpenPool(kv.PoolOwner(1), &ns, kvevent.ModelCard{HostBytes: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer p.End()
	if card := p.http.Load().Meta().Card; card.HostBytes != 5 || len(card.Groups.List()) != 2 || card.Groups.List()[1].Window != 8 {
		t.Errorf("the card announces %+v, %+v", card, card.Groups.List())
	}
	queue := h.ListenEvictions(ns.ID())
	defer queue.Close()
	block := func(group uint32) blockmgr.Block { return blockmgr.Block{Key: kv.BlockKey{1}.InGroup(group), Seq: 7} }
	for group := range uint32(2) {
		h.BlockStored(ns.ID(), kv.TierHost, block(group))
	}
	if st := p.stream.Status(); st.Blocks != 1 || st.GroupBlocks != 1 || st.GroupDigest != kv.Digest(kv.InGroup(7, 1), kv.TierHost) {
		t.Errorf("stored in both groups: %+v", st)
	}
	h.BlockRemoved(ns.ID(), kv.TierHost, block(0))
	if st := p.stream.Status(); st.Blocks != 1 || st.GroupBlocks != 0 || queue.queued != 0 {
		t.Errorf("the window is gone: %+v, %d notices", st, queue.queued)
	}
	h.BlockRemoved(ns.ID(), kv.TierHost, block(1))
	if st := p.stream.Status(); st.Blocks != 0 || queue.queued != 1 {
		t.Errorf("the primary block is gone: %+v, %d notices", st, queue.queued)
	}
}
