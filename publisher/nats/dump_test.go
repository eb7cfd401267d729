package nats

import (
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// gatedSource waits in Snapshot until it is let go, and counts.
type gatedSource struct {
	*publishertest.Source
	gate chan struct{}
	once sync.Once
	in   chan struct{} // closed when the first snapshot is asked for
}

func (g *gatedSource) Snapshot() ([]kvevent.RouterEvent, uint64, uint64) {
	g.once.Do(func() { close(g.in) })
	<-g.gate
	return g.Source.Snapshot()
}

// startGated attaches a feed of a source of n blocks whose first snapshot waits
// for the gate, and a consumer that knows of it.
func startGated(t *testing.T, blocks int) (*consumer, *Feed, *gatedSource) {
	t.Helper()
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	n, err := Connect(t.Context(), Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	f, err := n.NewFeed(testOwner, testMeta)
	if err != nil {
		t.Fatal(err)
	}
	src := &gatedSource{Source: publishertest.NewSource(), gate: make(chan struct{}), in: make(chan struct{})}
	src.Sink = f
	for i := range blocks / 500 {
		src.Store(i*500+1, 500)
	}
	if err := f.Attach(src); err != nil {
		t.Fatal(err)
	}
	c.announcement(func(*kvevent.Announcement) bool { return true })
	return c, f, src
}

// askAll subscribes one channel to several inboxes and asks with each.
func askAll(t *testing.T, c *consumer, publisher uint64, requests ...kvevent.QueryRequest) (<-chan *nats.Msg, []string) {
	t.Helper()
	ch := make(chan *nats.Msg, 10000)
	var inboxes []string
	for i := range requests {
		inbox := c.conn.NewRespInbox()
		inboxes = append(inboxes, inbox)
		if _, err := c.conn.ChanSubscribe(inbox, ch); err != nil {
			t.Fatal(err)
		}
		if err := c.conn.PublishRequest(kvevent.QuerySubject("default", publisher), inbox, kvevent.AppendQueryRequest(nil, &requests[i])); err != nil {
			t.Fatal(err)
		}
	}
	return ch, inboxes
}

// TestAskersShareOneSnapshot: whoever asks for everything while a dump is being
// made gets the next one together with the others, all of them whole, and the
// source is asked only once while nothing changes.
func TestAskersShareOneSnapshot(t *testing.T) {
	c, f, src := startGated(t, 20000)
	first, _ := askAll(t, c, f.PublisherID(), kvevent.QueryRequest{})
	<-src.in
	const others = 8
	ch, inboxes := askAll(t, c, f.PublisherID(), make([]kvevent.QueryRequest, others)...)
	if err := c.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	close(src.gate)
	want := src.Status().Digest
	answers := make(map[string][]kvevent.RouterEvent)
	finals := 0
	read := func(ch <-chan *nats.Msg) {
		select {
		case m := <-ch:
			r, err := kvevent.DecodeQueryReply(m.Data)
			if err != nil || r.Kind != kvevent.QueryTreeDump || r.LastEventID != 40 {
				t.Fatalf("answer %s up to %d: %v", r.Kind, r.LastEventID, err)
			}
			answers[m.Subject] = append(answers[m.Subject], r.Events...)
			if r.Final {
				finals++
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no answer")
		}
	}
	for finals < 1 {
		read(first)
	}
	for finals < 1+others {
		read(ch)
	}
	for _, inbox := range inboxes {
		if got := publishertest.Digest(publishertest.Blocks(answers[inbox])); got != want {
			t.Errorf("%s: digest %x, want %x", inbox, got, want)
		}
	}
	if s := f.Stats(); s.Dumps != 1+others || s.Snapshots != 1 || s.SharedDumps != others {
		t.Errorf("stats %+v, want one snapshot for %d dumps", s, 1+others)
	}
}

// TestDumpIsBroughtUpToDate: a dump after a few events takes no new snapshot and
// holds them; one after a Cleared, or after many events, takes one.
func TestDumpIsBroughtUpToDate(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	_, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	src.Store(1, 1000)
	check := func(when string, snapshots uint64) {
		t.Helper()
		reply, _ := c.ask(f.PublisherID(), kvevent.QueryRequest{})
		st := src.Status()
		if got := publishertest.Digest(publishertest.Blocks(reply.Events)); got != st.Digest || reply.LastEventID != st.LastEventID {
			t.Errorf("%s: digest %x up to %d, want %x up to %d", when, got, reply.LastEventID, st.Digest, st.LastEventID)
		}
		if s := f.Stats(); s.Snapshots != snapshots {
			t.Errorf("%s: %d snapshots, want %d", when, s.Snapshots, snapshots)
		}
	}
	c.announcement(func(*kvevent.Announcement) bool { return true })
	check("the first", 1)
	check("nothing new", 1)
	for i := range 512 { // the removal is one more
		src.Store(2000+i, 1)
	}
	src.Remove(1, 700)
	check("after too many events", 2)
	for i := range 100 {
		src.Store(1+i*2, 1)
	}
	src.Remove(701, 50)
	check("after some events", 2)
	src.Clear()
	src.Store(5000, 10)
	check("after a clear", 3)
	reply, _ := c.ask(f.PublisherID(), kvevent.QueryRequest{StartID: 2, HasStart: true})
	if reply.Kind != kvevent.QueryEvents || len(reply.Events) != 2 || reply.Events[0].Kind != kvevent.Cleared {
		t.Errorf("a range over a clear: %s with %d events, want the clear and what followed", reply.Kind, len(reply.Events))
	}
}

// TestRangesAreAnsweredBetweenChunks: who lost one message does not wait for the
// end of somebody else's long dump.
func TestRangesAreAnsweredBetweenChunks(t *testing.T) {
	c, f, src := startGated(t, 1_000_000)
	all, _ := askAll(t, c, f.PublisherID(), kvevent.QueryRequest{})
	<-src.in
	if _, err := c.conn.ChanSubscribe("range", c.ch); err != nil {
		t.Fatal(err)
	}
	q := kvevent.QueryRequest{StartID: 1999, HasStart: true}
	if err := c.conn.PublishRequest(kvevent.QuerySubject("default", f.PublisherID()), "range", kvevent.AppendQueryRequest(nil, &q)); err != nil {
		t.Fatal(err)
	}
	if err := c.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	close(src.gate)
	publishertest.Eventually(t, "the range", func() bool { return f.Stats().Queries == 2 })
	if s := f.Stats(); s.Dumps != 1 {
		t.Errorf("stats %+v", s)
	}
	var chunks int
	for final := false; !final; chunks++ {
		select {
		case m := <-all:
			r, err := kvevent.DecodeQueryReply(m.Data)
			if err != nil {
				t.Fatal(err)
			}
			final = r.Final
		case <-time.After(20 * time.Second):
			t.Fatalf("no chunk %d; stats %+v", chunks, f.Stats())
		}
	}
	if chunks < 1_000_000/kvevent.MaxBlocksPerMessage {
		t.Errorf("a million blocks in %d chunks", chunks)
	}
}
