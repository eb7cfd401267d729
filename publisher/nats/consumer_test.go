package nats

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// consumer is a router's view of NATS: one subscription for events and
// announcements, so that their order is kept.
type consumer struct {
	t    *testing.T
	conn *nats.Conn
	ch   chan *nats.Msg
}

func newConsumer(t *testing.T, url string) *consumer {
	t.Helper()
	closed := make(chan struct{})
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		<-closed
	})
	c := &consumer{t: t, conn: conn, ch: make(chan *nats.Msg, 10000)}
	for _, subject := range []string{kvevent.AllEventsSubject("default"), kvevent.AllAnnounceSubject("default")} {
		if _, err := conn.ChanSubscribe(subject, c.ch); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return c
}

// next is the next envelope or announcement.
func (c *consumer) next() (*kvevent.Envelope, *kvevent.Announcement) {
	c.t.Helper()
	for {
		if e, a, _ := c.any(); e != nil || a != nil {
			return e, a
		}
	}
}

// any is the next envelope, announcement or status.
func (c *consumer) any() (*kvevent.Envelope, *kvevent.Announcement, *kvevent.AgentStatus) {
	c.t.Helper()
	select {
	case m := <-c.ch:
		if strings.Contains(m.Subject, ".announce.") {
			status := new(kvevent.AgentStatus)
			if is, err := kvevent.DecodeAgentStatus(m.Data, status); err != nil {
				c.t.Fatal(err)
			} else if is {
				return nil, nil, status
			}
			a, err := kvevent.DecodeAnnouncement(m.Data)
			if err != nil {
				c.t.Fatal(err)
			}
			return nil, &a, nil
		}
		var d kvevent.EnvelopeDecoder
		e := new(kvevent.Envelope)
		if err := d.Decode(m.Data, e); err != nil {
			c.t.Fatal(err)
		}
		return e, nil, nil
	case <-time.After(20 * time.Second):
		c.t.Fatal("no message")
	}
	return nil, nil, nil
}

// announcement skips events until an announcement that satisfies ok.
func (c *consumer) announcement(ok func(*kvevent.Announcement) bool) *kvevent.Announcement {
	c.t.Helper()
	for {
		if _, a := c.next(); a != nil && ok(a) {
			return a
		}
	}
}

// query asks a publisher and puts the chunks of the answer together.
func (c *consumer) query(publisher uint64, request []byte) (kvevent.QueryReply, int) {
	c.t.Helper()
	inbox := c.conn.NewRespInbox()
	ch := make(chan *nats.Msg, 1000)
	sub, err := c.conn.ChanSubscribe(inbox, ch)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() {
		if err := sub.Unsubscribe(); err != nil {
			c.t.Error(err)
		}
	}()
	if err := c.conn.PublishRequest(kvevent.QuerySubject("default", publisher), inbox, request); err != nil {
		c.t.Fatal(err)
	}
	var whole kvevent.QueryReply
	for chunk := uint32(0); ; chunk++ {
		select {
		case m := <-ch:
			r, err := kvevent.DecodeQueryReply(m.Data)
			if err != nil {
				c.t.Fatal(err)
			}
			if r.Chunk != chunk || r.PublisherID != publisher || len(r.Events) > kvevent.MaxEventsPerMessage {
				c.t.Fatalf("chunk %d of publisher %d with %d events, want chunk %d", r.Chunk, r.PublisherID, len(r.Events), chunk)
			}
			events := append(whole.Events, r.Events...)
			whole = r
			whole.Events = events
			if r.Final {
				return whole, int(chunk) + 1
			}
		case <-time.After(20 * time.Second):
			c.t.Fatalf("no chunk %d", chunk)
		}
	}
}

func (c *consumer) ask(publisher uint64, q kvevent.QueryRequest) (kvevent.QueryReply, int) {
	c.t.Helper()
	return c.query(publisher, kvevent.AppendQueryRequest(nil, &q))
}
