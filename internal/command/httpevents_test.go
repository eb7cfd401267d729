package command

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	httpsource "github.com/blockyard-ai/blockyard/router/source/http"
)

// lossyWriter loses writes, each of which is a whole frame of a stream.
type lossyWriter struct {
	http.ResponseWriter
	lose func(frame []byte) bool
}

func (w *lossyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *lossyWriter) Write(b []byte) (int, error) {
	if w.lose(b) {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

// httpNode is a node without NATS: streams whose truth a test knows, and an agent's
// HTTP server that loses frames and is started anew.
type httpNode struct {
	t       *testing.T
	owners  []*httpOwner
	server  *httptest.Server
	agent   atomic.Pointer[httpAgentLife]
	closing sync.WaitGroup
	lossy   atomic.Bool
	events  atomic.Int64 // frames with events

	mu  sync.Mutex
	rng *rand.Rand
}

// httpAgentLife is an agent from its start to its end.
type httpAgentLife struct {
	hub  *httpfeed.Hub
	mux  *http.ServeMux
	dead atomic.Bool // killed: nothing that it writes arrives
}

// httpOwner is a stream, and what it was told.
type httpOwner struct {
	*residency.Stream
	feed  atomic.Pointer[httpfeed.Feed]
	truth map[kv.SequenceHash]kv.TierMask
}

func (o *httpOwner) Publish(events []kvevent.RouterEvent) {
	if f := o.feed.Load(); f != nil {
		f.Publish(events)
	}
}

func newHTTPNode(t *testing.T, seed uint64) *httpNode {
	n := &httpNode{t: t, rng: rand.New(rand.NewPCG(seed, 1))}
	for _, owner := range []kv.Owner{kv.WorkerOwner(kv.Worker{ID: 1}), kv.WorkerOwner(kv.Worker{ID: 1, Rank: 1}), kv.PoolOwner(7)} {
		o := &httpOwner{truth: make(map[kv.SequenceHash]kv.TierMask)}
		o.Stream = residency.NewStream(owner, o)
		n.owners = append(n.owners, o)
	}
	n.startAgent()
	n.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agent := n.agent.Load()
		agent.mux.ServeHTTP(&lossyWriter{w, func(frame []byte) bool {
			if agent.dead.Load() || !n.lossy.Load() {
				return agent.dead.Load()
			}
			if len(frame) > 4 && kvevent.StreamKind(frame[4]) == kvevent.StreamEvents {
				return n.events.Add(1)%3 == 0
			}
			return n.chance(10)
		}}, r)
	}))
	t.Cleanup(func() {
		n.stopAgent(false)
		n.closing.Wait()
		n.server.Close()
	})
	return n
}

// chance is true once in n times.
func (n *httpNode) chance(of int) bool { return n.intn(of) == 0 }

func (n *httpNode) intn(of int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.IntN(of)
}

func (n *httpNode) startAgent() {
	hub, err := httpfeed.New(httpfeed.Options{AnnounceEvery: 20 * time.Millisecond})
	if err != nil {
		n.t.Fatal(err)
	}
	mux := http.NewServeMux()
	hub.Register(mux)
	for _, o := range n.owners {
		meta := publisher.Meta{Model: "m", BlockSize: 16}
		if o.Owner().Kind == kv.OwnerWorker {
			meta.Pool = 7
		}
		f, err := hub.NewFeed(0, o.Owner(), meta)
		if err != nil {
			n.t.Fatal(err)
		}
		o.feed.Store(f)
		if err := f.Attach(o); err != nil {
			n.t.Fatal(err)
		}
	}
	n.agent.Store(&httpAgentLife{hub: hub, mux: mux})
}

// stopAgent ends the agent; one that is killed says no goodbye.
func (n *httpNode) stopAgent(killed bool) {
	for _, o := range n.owners {
		o.feed.Store(nil)
	}
	agent := n.agent.Load()
	agent.dead.Store(killed)
	if killed {
		n.server.CloseClientConnections()
	}
	n.closing.Go(func() {
		if err := agent.hub.Close(); err != nil {
			n.t.Error(err)
		}
	})
}

// step changes what some owner holds.
func (n *httpNode) step() {
	o := n.owners[n.intn(len(n.owners))]
	tier := kv.TierDevice
	if o.Owner().Kind == kv.OwnerPool {
		tier = []kv.Tier{kv.TierHost, kv.TierDisk}[n.intn(2)]
	}
	switch roll := n.intn(100); {
	case roll < 60:
		first, count := n.intn(400)+1, n.intn(20)+1
		for i := range count {
			h := kv.SequenceHash(first + i)
			if !o.truth[h].Has(tier) {
				o.Store(tier, 0, false, 0, []kvevent.StoredBlock{{Hash: h, Local: kv.LocalHash(h)}})
				o.truth[h] = o.truth[h].With(tier)
			}
		}
	case roll < 97:
		var hashes []kv.SequenceHash
		for h, tiers := range o.truth {
			if tiers.Has(tier) && len(hashes) < 10 {
				hashes = append(hashes, h)
				if o.truth[h] = tiers.Without(tier); o.truth[h] == 0 {
					delete(o.truth, h)
				}
			}
		}
		if len(hashes) > 0 {
			o.Remove(tier, hashes)
		}
	case roll < 98:
		o.Clear()
		clear(o.truth)
	default:
		n.stopAgent(roll == 98)
		n.startAgent()
	}
	if n.chance(3) {
		o.Flush()
	}
}

// differs says where a router's picture is not the truth; empty when it is nowhere.
func (n *httpNode) differs(r *router.Router) string {
	dumps := routertest.Dump(r)
	for _, o := range n.owners {
		i := slices.IndexFunc(dumps, func(d routertest.OwnerDump) bool { return d.Owner == o.Owner() })
		if i < 0 {
			return fmt.Sprintf("%s is not known", o.Owner())
		}
		if len(dumps[i].Blocks) != len(o.truth) {
			return fmt.Sprintf("%s has %d blocks, the router thinks %d", o.Owner(), len(o.truth), len(dumps[i].Blocks))
		}
		for _, b := range dumps[i].Blocks {
			if o.truth[b.Hash] != b.Tiers {
				return fmt.Sprintf("%s block %d lies in %b, the router thinks %b", o.Owner(), b.Hash, o.truth[b.Hash], b.Tiers)
			}
		}
	}
	return ""
}

func (n *httpNode) router() *router.Router {
	h, err := httpsource.Connect(httpsource.Options{Agents: []string{n.server.URL}, ReconnectWait: time.Millisecond})
	if err != nil {
		n.t.Fatal(err)
	}
	r, err := router.New(router.Options{}, h)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	n.t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := h.Close(); err != nil {
			n.t.Error(err)
		}
	})
	return r
}

func (n *httpNode) converges(who string, r *router.Router) {
	n.t.Helper()
	waittest.Pass(n.t, func() string {
		if n.differs(r) == "" && r.Quality() == feed.Exact {
			return ""
		}
		return fmt.Sprintf("%s: %s, quality %s, feeds %+v", who, n.differs(r), r.Quality(), r.Feeds())
	})
}

// TestRoutersWithoutNATSConverge: whatever frames are lost, however often the agent
// is stopped or killed, and however late a router comes, its picture becomes what the
// streams hold, block by block and tier by tier.
func TestRoutersWithoutNATSConverge(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n := newHTTPNode(t, seed)
			first := n.router()
			n.lossy.Store(true)
			for round := range 20 {
				for range 50 {
					n.step()
				}
				for _, o := range n.owners {
					o.Flush()
				}
				n.converges(fmt.Sprintf("the first router, round %d", round), first)
			}
			late := n.router()
			n.converges("a late router", late)
			if lost := n.events.Load() / 3; lost == 0 {
				t.Error("no frame with events was lost: nothing was put to the test")
			}
		})
	}
}
