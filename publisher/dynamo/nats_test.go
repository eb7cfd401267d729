package dynamo

import (
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	natspub "github.com/blockyard-ai/blockyard/publisher/nats"
)

// connect is a router's connection.
func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	c, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		<-closed
	})
	return c
}

// TestARouterFollowsThroughARealServer: live events, a hole that is filled over
// TCP, and a server that goes and comes back.
func TestARouterFollowsThroughARealServer(t *testing.T) {
	server, err := natspub.StartEmbedded(natspub.EmbeddedOptions{Token: "token"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { server.Close() }()
	messages := make(chan *nats.Msg, 10000)
	sub, err := connect(t, server.URL()).ChanSubscribe("namespace.dynamo.component.backend.endpoint.generate.*", messages)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if n, err := sub.Dropped(); err != nil || n > 0 {
			t.Errorf("the test dropped %d messages, %v", n, err)
		}
	}()
	o := testOptions(t)
	o.Recovery = "127.0.0.1:0"
	n, err := natspub.Connect(t.Context(), natspub.Options{URL: server.URL(), ReconnectWait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	p := openPlane(t, o, n)
	f := newFakeStream()
	f.store(kv.TierDevice, 1, 2, 3)
	s := addSource(t, p, f)
	c := newCaller(t, p.address)
	r := newRouterModel(s)
	recover := func() {
		t.Helper()
		for r.recovering {
			follow(t, r, c.ask(s, r.asked))
		}
	}
	recover()
	settled := func() bool { return !r.recovering && r.agrees(f) == nil }
	pump := func(lose bool) {
		t.Helper()
		deadline := time.After(testTimeout)
		for first := lose; !settled(); first = false {
			select {
			case m := <-messages:
				e, err := decodeEnvelope(m.Data)
				if err != nil {
					t.Fatal(err)
				}
				if !first {
					if err := r.events(e.Events); err != nil {
						t.Fatal(err)
					}
				}
				recover()
			case <-deadline:
				t.Fatal(r.agrees(f))
			}
		}
	}
	f.store(kv.TierHost, 4, 5)
	f.remove(kv.TierDevice, 3)
	pump(false)
	// The only message of a change is lost: the empty event behind it tells.
	f.store(kv.TierDisk, 6)
	pump(true)
	if got := s.Stats(); got.Probes == 0 || got.Queries < 2 {
		t.Errorf("%+v", got)
	}
	port := serverPort(t, server)
	server.Close()
	within(t, "the outage", func() bool { return !p.conn.Connected() })
	f.store(kv.TierDevice, 7)
	f.clear()
	f.store(kv.TierDevice, 8)
	if server, err = natspub.StartEmbedded(natspub.EmbeddedOptions{Token: "token", Port: port}); err != nil {
		t.Fatal(err)
	}
	pump(false)
	if kinds := s.Stats(); kinds.Dropped != 0 {
		t.Errorf("%+v", kinds)
	}
}

// follow gives a router the answer to what it asked.
func follow(t *testing.T, r *routerModel, reply *kvevent.QueryReply) {
	t.Helper()
	if err := r.answered(reply); err != nil {
		t.Fatal(err)
	}
}

func serverPort(t *testing.T, e *natspub.Embedded) int {
	t.Helper()
	u, err := url.Parse(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
