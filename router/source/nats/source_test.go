package nats_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestNATSCarriesEventsQueriesAndGaps: the whole way over a real server: a late
// router's first dump, live events in the order they were sent, a lost message,
// and a deployment on the same server that is none of our business.
func TestNATSCarriesEventsQueriesAndGaps(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	const cluster = "prod"
	p := sourcetest.NewWirePublisher(t, url, cluster, sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	for i := range uint32(20) {
		p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1, 2, 100+i), 0)
	}
	r := startRouter(t, url, cluster)
	stranger := sourcetest.NewWirePublisher(t, url, "staging", sourcetest.NewPublisher(12, sourcetest.WorkerOwner(2), 0))
	stranger.SendAnnouncement("staging")
	p.SendAnnouncement(cluster)
	sourcetest.Eventually(t, "synced by a dump of many chunks", func() bool {
		return routertest.DeviceHits(r, sourcetest.Tokens(1, 2, 119)) == 3 && r.Quality() == feed.Exact
	})
	for i := range uint32(500) {
		p.SendStore(cluster, sourcetest.Tokens(3, 200+i))
		if i%7 == 0 {
			p.SendAnnouncement(cluster)
		}
	}
	sourcetest.Eventually(t, "all live events applied", func() bool { return r.Feeds()[0].Cursor == 520 })
	if f := r.Feeds()[0]; f.Counters.Gaps != 0 || f.Counters.Divergences != 0 {
		t.Errorf("feed %+v: events and announcements got out of order", f)
	}
	p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(8), 0) // not sent
	p.SendStore(cluster, sourcetest.Tokens(9))
	sourcetest.Eventually(t, "the gap repaired", func() bool {
		return r.Feeds()[0].Counters.GapsRepaired == 1 && routertest.DeviceHits(r, sourcetest.Tokens(8)) == 1
	})
	p.SendAnnouncement(cluster)
	p.Publish(kvevent.AnnounceSubject(cluster, 11), p.Goodbye().Data)
	sourcetest.Eventually(t, "the owner gone", func() bool { return r.Stats().Workers == 0 })
	if s := r.Stats(); s.Feeds.Divergences != 0 || s.Feeds.Undecodable != 0 || s.Transport.Dropped != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestNATSQueryFailsFastWithoutPublisher(t *testing.T) {
	n, err := natssource.Connect(natssource.Options{URL: sourcetest.StartServer(t).ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Query(t.Context(), 99, kvevent.QueryRequest{}); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("query of nobody: %v, want no responders", err)
	}
}

// link is a way to a server that can be cut.
type link struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func newLink(t *testing.T, target string) *link {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{listener: listener, target: target}
	l.running.Go(l.accept)
	t.Cleanup(func() {
		listener.Close()
		l.set(true)
		l.running.Wait()
	})
	return l
}

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.join(client)
	}
}

// join connects a client to the server, or hangs up when the link is cut.
func (l *link) join(client net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server, err := net.Dial("tcp", l.target)
	if err != nil || l.cut {
		client.Close()
		if err == nil {
			server.Close()
		}
		return
	}
	l.conns = append(l.conns, client, server)
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		l.running.Go(func() {
			io.Copy(way[0], way[1])
			way[0].Close()
		})
	}
}

// set cuts the link or mends it.
func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut = cut; cut {
		for _, c := range l.conns {
			c.Close()
		}
		l.conns = nil
	}
}

// TestRouterStartsBeforeNATS: without a server the router serves, says that it
// knows nothing, and joins when one comes up.
func TestRouterStartsBeforeNATS(t *testing.T) {
	s := sourcetest.StartServer(t)
	way := newLink(t, s.Addr().String())
	way.set(true)
	r := startRouter(t, "nats://"+way.listener.Addr().String(), "")
	if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("ready: %v, want not connected", err)
	}
	if got := r.Quality(); got != feed.Fallback {
		t.Errorf("quality %s, want %s", got, feed.Fallback)
	}
	if _, err := r.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1)}); !errors.Is(err, router.ErrNoWorkers) {
		t.Errorf("decision: %v, want no workers", err)
	}
	way.set(false)
	p := sourcetest.NewWirePublisher(t, s.ClientURL(), "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	p.Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1), 0)
	sourcetest.Eventually(t, "joined", func() bool {
		p.SendAnnouncement("default")
		return r.Ready() == nil && r.Quality() == feed.Exact && routertest.DeviceHits(r, sourcetest.Tokens(1)) == 1
	})
	if got := r.Stats().Transport; !got.Connected || got.Reconnects != 0 {
		t.Errorf("transport %+v, want the first connection", got)
	}
}

// TestSlowConsumerDropsAreGaps: messages that nobody takes are dropped beyond
// the queue and counted, and the connection lives on.
func TestSlowConsumerDropsAreGaps(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	n, err := natssource.Connect(natssource.Options{URL: url, Queue: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	p := sourcetest.NewWirePublisher(t, url, "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	for range 50 {
		p.SendAnnouncement("default")
	}
	sourcetest.Eventually(t, "dropping", func() bool { return n.Stats().Dropped >= 40 })
	for range 4 {
		if f := <-n.Frames(); f.Kind != source.FrameAnnouncement {
			t.Errorf("frame of kind %d, want an announcement", f.Kind)
		}
	}
}

func TestNATSErrorsNameWhatIsWrong(t *testing.T) {
	guarded := sourcetest.StartServer(t, func(o *server.Options) { o.Authorization = "right" })
	for want, o := range map[string]natssource.Options{
		"url":                                    {},
		"cluster":                                {URL: "nats://127.0.0.1:1", Cluster: "a.b"},
		"queue":                                  {URL: "nats://127.0.0.1:1", Queue: -1},
		"server 2":                               {URL: "nats://127.0.0.1:1,http://secret@127.0.0.1:1"},
		"nats nats://" + guarded.Addr().String(): {URL: "nats://secret@" + guarded.Addr().String()},
	} {
		n, err := natssource.Connect(o)
		if err == nil {
			n.Close()
			t.Fatalf("%+v was accepted", o)
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("error %q: want it to name %s and no secret", err, want)
		}
	}
}

// startRouter runs a router on a NATS server until the test ends.
func startRouter(t *testing.T, url, cluster string) *router.Router {
	t.Helper()
	transport, err := natssource.Connect(natssource.Options{URL: url, Cluster: cluster})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := transport.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	return routertest.RunOn(t, router.Options{}, transport)
}
