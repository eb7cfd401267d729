package nats

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

var (
	testOwner = publishertest.Owner
	testMeta  = publisher.Meta{Pool: 9, Namespace: kv.NamespaceID{1, 2}, Model: "m", BlockSize: 16}
)

func startServer(t *testing.T, o EmbeddedOptions) *Embedded {
	t.Helper()
	e, err := StartEmbedded(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// startFeed attaches a feed of a new source.
func startFeed(t *testing.T, o Options) (*Conn, *Feed, *publishertest.Source) {
	t.Helper()
	n, err := Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	f, err := n.NewFeed(testOwner, testMeta)
	if err != nil {
		t.Fatal(err)
	}
	src := publishertest.NewSource()
	src.Sink = f
	if err := f.Attach(src); err != nil {
		t.Fatal(err)
	}
	return n, f, src
}

func TestCloseSendsWhatIsQueuedAndThenGone(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	n, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	for i := range 500 {
		src.Store(i+1, 1)
	}
	if err := errors.Join(f.Close(), f.Close(), n.Close(), n.Close()); err != nil {
		t.Fatal(err)
	}
	var cursor uint64
	for {
		e, a := c.next()
		if e != nil {
			cursor += uint64(len(e.Events))
		}
		if a != nil && a.Health == kvevent.HealthGone {
			break
		}
	}
	if cursor != 500 {
		t.Errorf("%d events before the owner was gone, want 500", cursor)
	}
	src.Store(1000, 1)
	if err := f.Attach(src); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("attach after close: %v", err)
	}
	if _, err := n.NewFeed(testOwner, testMeta); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("new feed after close: %v", err)
	}
}

func TestFeedContinuesAfterTheServerWasAway(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{Token: "secret"})
	n, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour, ReconnectWait: 20 * time.Millisecond})
	src.Store(1, 1)
	publishertest.Eventually(t, "the first event", func() bool { return f.Stats().Events == 1 })
	port := serverPort(t, srv)
	srv.Close()
	publishertest.Eventually(t, "the connection to end", func() bool { return !n.Connected() })
	for i := range publisher.JournalEvents + 10 {
		src.Store(i+2, 1)
	}
	again := startServer(t, EmbeddedOptions{Token: "secret", Port: port})
	publishertest.Eventually(t, "the connection to return", n.Connected)
	publishertest.Eventually(t, "the journal to be sent", func() bool {
		s := f.Stats()
		return s.Unsent == 0 && s.Events+s.Skipped == publisher.JournalEvents+11
	})
	if s := f.Stats(); s.Skipped == 0 {
		t.Errorf("stats %+v", s)
	}
	// The announcement on return lets a consumer see that it lost something.
	publishertest.Eventually(t, "an announcement", func() bool { return f.Stats().Announcements >= 2 })
	late := newConsumer(t, again.URL())
	f.HealthChanged(kvevent.HealthExact)
	late.announcement(func(*kvevent.Announcement) bool { return true })
	reply, _ := late.ask(f.PublisherID(), kvevent.QueryRequest{StartID: 2, HasStart: true})
	if reply.Kind != kvevent.QueryTreeDump || publishertest.Digest(publishertest.Blocks(reply.Events)) != src.Status().Digest {
		t.Errorf("answer %s with %d blocks", reply.Kind, len(publishertest.Blocks(reply.Events)))
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

func serverPort(t *testing.T, e *Embedded) int {
	t.Helper()
	_, port, ok := strings.Cut(e.URL()[strings.Index(e.URL(), "@")+1:], ":")
	if !ok {
		t.Fatalf("url %q", e.URL())
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func storedEvent(id uint64, blocks int) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Owner: testOwner, ID: id, Kind: kvevent.Stored, Blocks: make([]kvevent.StoredBlock, blocks)}
	for i := range e.Blocks {
		e.Blocks[i].Hash = kv.SequenceHash(id*1000 + uint64(i))
	}
	return e
}
