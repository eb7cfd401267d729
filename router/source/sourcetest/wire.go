package sourcetest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// WirePublisher puts a Publisher on a NATS connection of its own. Its answers have one event per
// chunk.
type WirePublisher struct {
	*Publisher
	t    *testing.T
	conn *nats.Conn
}

// NewWirePublisher connects a publisher to a NATS server until the test ends.
func NewWirePublisher(t *testing.T, url, cluster string, p *Publisher) *WirePublisher {
	t.Helper()
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w := &WirePublisher{Publisher: p, t: t, conn: conn}
	if _, err := conn.Subscribe(kvevent.QuerySubject(cluster, p.Meta.PublisherID), w.serve); err != nil {
		t.Fatal(err)
	}
	return w
}

// serve answers the query in message m as a publisher on NATS does, with one event per chunk, so that
// tests see answers of several chunks.
func (w *WirePublisher) serve(m *nats.Msg) {
	q, err := kvevent.DecodeQueryRequest(m.Data)
	if err != nil {
		w.t.Error(err)
		return
	}
	a := w.Answer(q)
	for i := 0; i == 0 || i < len(a.Events); i++ {
		r := kvevent.QueryReply{PublisherID: w.Meta.PublisherID, Kind: a.Kind, LastEventID: a.LastEventID,
			Chunk: uint32(i), Final: i >= len(a.Events)-1}
		if len(a.Events) > 0 {
			r.Events = a.Events[i : i+1]
		}
		w.Publish(m.Reply, kvevent.AppendQueryReply(nil, &r))
	}
}

// Publish sends a message.
func (w *WirePublisher) Publish(subject string, data []byte) {
	if err := w.conn.Publish(subject, data); err != nil {
		w.t.Error(err)
	}
}

// SendAnnouncement announces the publisher.
func (w *WirePublisher) SendAnnouncement(cluster string) {
	w.Publish(kvevent.AnnounceSubject(cluster, w.Meta.PublisherID), w.Announcement())
}

// SendStore stores the blocks of a prompt and sends the event.
func (w *WirePublisher) SendStore(cluster string, tokens []uint32) {
	w.Publish(kvevent.EventsSubject(cluster, w.Meta.PublisherID), w.Add(kvevent.Stored, kv.TierDevice, tokens, 0))
}
