package router

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// wirePublisher puts a testPublisher on a NATS connection of its own, with
// answers of one event per chunk.
type wirePublisher struct {
	*testPublisher
	t    *testing.T
	conn *nats.Conn
}

func newWirePublisher(t *testing.T, url, cluster string, p *testPublisher) *wirePublisher {
	t.Helper()
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w := &wirePublisher{testPublisher: p, t: t, conn: conn}
	if _, err := conn.Subscribe(kvevent.QuerySubject(cluster, p.meta.PublisherID), w.serve); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *wirePublisher) serve(m *nats.Msg) {
	q, err := kvevent.DecodeQueryRequest(m.Data)
	if err != nil {
		w.t.Error(err)
		return
	}
	a := w.answer(q)
	for i := 0; i == 0 || i < len(a.Events); i++ {
		r := kvevent.QueryReply{PublisherID: w.meta.PublisherID, Kind: a.Kind, LastEventID: a.LastEventID,
			Chunk: uint32(i), Final: i >= len(a.Events)-1}
		if len(a.Events) > 0 {
			r.Events = a.Events[i : i+1]
		}
		w.publish(m.Reply, kvevent.AppendQueryReply(nil, &r))
	}
}

func (w *wirePublisher) publish(subject string, data []byte) {
	if err := w.conn.Publish(subject, data); err != nil {
		w.t.Error(err)
	}
}

func (w *wirePublisher) sendAnnouncement(cluster string) {
	w.publish(kvevent.AnnounceSubject(cluster, w.meta.PublisherID), w.announcement())
}

func (w *wirePublisher) sendStore(cluster string, tokens []uint32) {
	w.publish(kvevent.EventsSubject(cluster, w.meta.PublisherID), w.add(kvevent.Stored, kv.TierDevice, tokens, 0))
}
