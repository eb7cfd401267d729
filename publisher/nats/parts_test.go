package nats

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// part asks for a part of an answer and reads it until it has n chunks, or the last one.
func (c *consumer) part(publisher uint64, q kvevent.QueryRequest, n int) []kvevent.QueryReply {
	c.t.Helper()
	inbox := c.conn.NewRespInbox()
	ch := make(chan *nats.Msg, 1000)
	sub, err := c.conn.ChanSubscribe(inbox, ch)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.conn.PublishRequest(kvevent.QuerySubject("default", publisher), inbox, kvevent.AppendQueryRequest(nil, &q)); err != nil {
		c.t.Fatal(err)
	}
	var out []kvevent.QueryReply
	for len(out) < n && (len(out) == 0 || !out[len(out)-1].Final) {
		select {
		case m := <-ch:
			r, err := kvevent.DecodeQueryReply(m.Data)
			if err != nil {
				c.t.Fatal(err)
			}
			out = append(out, r)
		case <-time.After(20 * time.Second):
			c.t.Fatalf("%d chunks of %d", len(out), n)
		}
	}
	return out
}

// TestADumpIsReadInParts: a reader gets the chunks that it asks for, of one dump, whatever
// happens and whoever asks in between.
func TestADumpIsReadInParts(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{MaxPayload: minPayload})
	c := newConsumer(t, srv.URL())
	_, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	c.announcement(func(*kvevent.Announcement) bool { return true })
	for i := range 100 {
		src.Store(i*300+1, 300)
	}
	whole := src.Status().Digest
	read := c.part(f.PublisherID(), kvevent.QueryRequest{MaxChunks: 2}, 2)
	first := read[0]
	if first.Kind != kvevent.QueryTreeDump || first.DumpID == 0 || first.LastEventID != 100 || first.Final {
		t.Fatalf("first chunk: %s %d up to %d, final %v", first.Kind, first.DumpID, first.LastEventID, first.Final)
	}
	for i := range uint32(1000) {
		last := read[len(read)-1]
		if last.Final {
			break
		}
		src.Store(100_000+int(i)*10, 3)
		if i == 1 {
			// The journal has what happened since: another reader may have the same dump.
			if other := c.part(f.PublisherID(), kvevent.QueryRequest{MaxChunks: 1}, 1)[0]; other.DumpID != first.DumpID {
				t.Errorf("another reader gets dump %d, want %d", other.DumpID, first.DumpID)
			}
		}
		read = append(read, c.part(f.PublisherID(), kvevent.QueryRequest{DumpID: first.DumpID, FirstChunk: last.Chunk + 1, MaxChunks: 3}, 3)...)
	}
	var events []kvevent.RouterEvent
	for i, r := range read {
		if r.Chunk != uint32(i) || r.DumpID != first.DumpID || r.LastEventID != 100 {
			t.Fatalf("chunk %d is chunk %d of dump %d up to event %d", i, r.Chunk, r.DumpID, r.LastEventID)
		}
		events = append(events, r.Events...)
	}
	if got := publishertest.Digest(publishertest.Blocks(events)); got != whole {
		t.Errorf("digest of the parts %x, want %x", got, whole)
	}
	if s := f.Stats(); s.Snapshots != 1 || s.Dumps != 2 || s.VoidAnswers != 0 {
		t.Errorf("stats %+v, want one snapshot", s)
	}
}

// TestAnUnknownDumpBeginsAnew: a reader of a dump that is no longer there gets the first
// part of another one.
func TestAnUnknownDumpBeginsAnew(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	_, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	c.announcement(func(*kvevent.Announcement) bool { return true })
	for i := range 100 {
		src.Store(i*300+1, 300)
	}
	first := c.part(f.PublisherID(), kvevent.QueryRequest{MaxChunks: 1}, 1)[0]
	for i := range publisher.JournalEvents + 1 {
		src.Store(100_000+i, 1) // The journal cannot bring a reader of that dump up to date.
	}
	if _, chunks := c.ask(f.PublisherID(), kvevent.QueryRequest{}); chunks < 2 {
		t.Fatalf("a whole dump of %d chunks", chunks)
	}
	again := c.part(f.PublisherID(), kvevent.QueryRequest{DumpID: first.DumpID, FirstChunk: 1, MaxChunks: 1}, 1)[0]
	if again.Chunk != 0 || again.DumpID == first.DumpID || again.DumpID == 0 || again.LastEventID != 100+publisher.JournalEvents+1 {
		t.Errorf("chunk %d of dump %d up to %d after dump %d was replaced", again.Chunk, again.DumpID, again.LastEventID, first.DumpID)
	}
}

// TestARangeIsCutToAWindow: the answer says with which event it ends.
func TestARangeIsCutToAWindow(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	_, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	c.announcement(func(*kvevent.Announcement) bool { return true })
	for i := range 3*kvevent.MaxEventsPerMessage + 5 {
		src.Store(i+1, 1)
	}
	for start, want := range map[uint64]uint64{1: 2 * kvevent.MaxEventsPerMessage, 200: 389, 389: 389} {
		r := c.part(f.PublisherID(), kvevent.QueryRequest{StartID: start, HasStart: true, MaxChunks: 2}, 2)
		last := r[len(r)-1]
		if last.Kind != kvevent.QueryEvents || !last.Final || last.LastEventID != want || last.Events[len(last.Events)-1].ID != want {
			t.Errorf("from %d: %s up to %d, final %v; want %d", start, last.Kind, last.LastEventID, last.Final, want)
		}
	}
}
