package router

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
)

// TestNATSCarriesEventsQueriesAndGaps: the whole way over a real server: a late
// router's first dump, live events in the order they were sent, a lost message,
// and a deployment on the same server that is none of our business.
func TestNATSCarriesEventsQueriesAndGaps(t *testing.T) {
	url := startServer(t).ClientURL()
	const cluster = "prod"
	p := newWirePublisher(t, url, cluster, newTestPublisher(11, workerOwner(1), 0))
	for i := range uint32(20) {
		p.add(kvevent.Stored, kv.TierDevice, promptTokens(1, 2, 100+i), 0)
	}
	r := startRouter(t, url, cluster)
	stranger := newWirePublisher(t, url, "staging", newTestPublisher(12, workerOwner(2), 0))
	stranger.sendAnnouncement("staging")
	p.sendAnnouncement(cluster)
	eventually(t, "synced by a dump of many chunks", func() bool {
		return deviceHits(r, promptTokens(1, 2, 119)) == 3 && r.Quality() == QualityExact
	})
	for i := range uint32(500) {
		p.sendStore(cluster, promptTokens(3, 200+i))
		if i%7 == 0 {
			p.sendAnnouncement(cluster)
		}
	}
	eventually(t, "all live events applied", func() bool { return r.Feeds()[0].Cursor == 520 })
	if f := r.Feeds()[0]; f.Counters.Gaps != 0 || f.Counters.Divergences != 0 {
		t.Errorf("feed %+v: events and announcements got out of order", f)
	}
	p.add(kvevent.Stored, kv.TierDevice, promptTokens(8), 0) // not sent
	p.sendStore(cluster, promptTokens(9))
	eventually(t, "the gap repaired", func() bool {
		return r.Feeds()[0].Counters.GapsRepaired == 1 && deviceHits(r, promptTokens(8)) == 1
	})
	p.sendAnnouncement(cluster)
	p.publish(kvevent.AnnounceSubject(cluster, 11), p.goodbye().Data)
	eventually(t, "the owner gone", func() bool { return r.Stats().Workers == 0 })
	if s := r.Stats(); s.Feeds.Divergences != 0 || s.Feeds.Undecodable != 0 || s.Transport.Dropped != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestNATSQueryFailsFastWithoutPublisher(t *testing.T) {
	n, err := ConnectNATS(NATSOptions{URL: startServer(t).ClientURL()})
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

// TestNATSOutageForgetsNobody: while the router is cut off it answers, degraded,
// and when it is back it finds what it missed.
func TestNATSOutageForgetsNobody(t *testing.T) {
	s := startServer(t)
	way := newLink(t, s.Addr().String())
	p := newWirePublisher(t, s.ClientURL(), "default", newTestPublisher(11, workerOwner(1), 0))
	r := startRouter(t, "nats://"+way.listener.Addr().String(), "")
	p.sendAnnouncement("default")
	p.sendStore("default", promptTokens(1))
	eventually(t, "joined", func() bool { return deviceHits(r, promptTokens(1)) == 1 && r.Ready() == nil })
	way.set(true)
	eventually(t, "degraded", func() bool { return r.Quality() == QualityDegraded && r.Ready() == nil })
	p.sendStore("default", promptTokens(2))
	if got := deviceHits(r, promptTokens(1)); got != 1 {
		t.Errorf("%d device hits in the outage, want 1", got)
	}
	way.set(false)
	eventually(t, "whole again", func() bool {
		p.sendAnnouncement("default")
		return r.Quality() == QualityExact && deviceHits(r, promptTokens(2)) == 1
	})
	if got := r.Stats(); !got.Transport.Connected || got.Transport.Reconnects != 1 || got.Feeds.GapsRepaired != 1 {
		t.Errorf("stats %+v, want one reconnect and one gap repaired", got)
	}
}

// TestRouterStartsBeforeNATS: without a server the router serves, says that it
// knows nothing, and joins when one comes up.
func TestRouterStartsBeforeNATS(t *testing.T) {
	s := startServer(t)
	way := newLink(t, s.Addr().String())
	way.set(true)
	r := startRouter(t, "nats://"+way.listener.Addr().String(), "")
	if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("ready: %v, want not connected", err)
	}
	if got := r.Quality(); got != QualityFallback {
		t.Errorf("quality %s, want %s", got, QualityFallback)
	}
	if _, err := r.FindBestMatch(t.Context(), &Request{Tokens: promptTokens(1)}); !errors.Is(err, ErrNoWorkers) {
		t.Errorf("decision: %v, want no workers", err)
	}
	way.set(false)
	p := newWirePublisher(t, s.ClientURL(), "default", newTestPublisher(11, workerOwner(1), 0))
	p.add(kvevent.Stored, kv.TierDevice, promptTokens(1), 0)
	eventually(t, "joined", func() bool {
		p.sendAnnouncement("default")
		return r.Ready() == nil && r.Quality() == QualityExact && deviceHits(r, promptTokens(1)) == 1
	})
	if got := r.Stats().Transport; !got.Connected || got.Reconnects != 0 {
		t.Errorf("transport %+v, want the first connection", got)
	}
}

// TestSlowConsumerDropsAreGaps: messages that nobody takes are dropped beyond
// the queue and counted, and the connection lives on.
func TestSlowConsumerDropsAreGaps(t *testing.T) {
	url := startServer(t).ClientURL()
	n, err := ConnectNATS(NATSOptions{URL: url, Queue: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	p := newWirePublisher(t, url, "default", newTestPublisher(11, workerOwner(1), 0))
	for range 50 {
		p.sendAnnouncement("default")
	}
	eventually(t, "dropping", func() bool { return n.Stats().Dropped >= 40 })
	for range 5 {
		if f := <-n.Frames(); f.Kind != FrameAnnouncement {
			t.Errorf("frame of kind %d, want an announcement", f.Kind)
		}
	}
}

func TestNATSErrorsNameWhatIsWrong(t *testing.T) {
	guarded := startServer(t, func(o *server.Options) { o.Authorization = "right" })
	for want, o := range map[string]NATSOptions{
		"url":                                    {},
		"cluster":                                {URL: "nats://127.0.0.1:1", Cluster: "a.b"},
		"queue":                                  {URL: "nats://127.0.0.1:1", Queue: -1},
		"server 2":                               {URL: "nats://127.0.0.1:1,http://secret@127.0.0.1:1"},
		"nats nats://" + guarded.Addr().String(): {URL: "nats://secret@" + guarded.Addr().String()},
	} {
		n, err := ConnectNATS(o)
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
func startRouter(t *testing.T, url, cluster string) *Router {
	t.Helper()
	transport, err := ConnectNATS(NATSOptions{URL: url, Cluster: cluster})
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
	return runOn(t, Options{}, transport)
}
