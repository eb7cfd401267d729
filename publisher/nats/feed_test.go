package nats

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

var (
	testOwner = kv.WorkerOwner(kv.Worker{ID: 7})
	testMeta  = publisher.Meta{Pool: 9, Namespace: kv.NamespaceID{1, 2}, Model: "m", BlockSize: 16}
)

// fakeSource is a stream as the consolidator makes it: it calls the feed under
// its own lock.
type fakeSource struct {
	mu     sync.Mutex
	feed   *Feed
	last   uint64
	blocks map[kv.SequenceHash]struct{}
	health kvevent.Health
}

func newFakeSource() *fakeSource {
	return &fakeSource{blocks: make(map[kv.SequenceHash]struct{}), health: kvevent.HealthExact}
}

func (s *fakeSource) Owner() kv.Owner { return testOwner }

func (s *fakeSource) Status() publisher.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return publisher.Status{LastEventID: s.last, Digest: digest(s.blocks), Blocks: uint64(len(s.blocks)), Health: s.health}
}

func (s *fakeSource) Snapshot() ([]kvevent.RouterEvent, uint64, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []kvevent.RouterEvent
	for part := range slices.Chunk(slices.Sorted(maps.Keys(s.blocks)), 512) {
		e := kvevent.RouterEvent{Owner: testOwner, ID: uint64(len(events)) + 1, Kind: kvevent.Stored}
		for _, h := range part {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
		}
		events = append(events, e)
	}
	return events, s.last, digest(s.blocks)
}

// store makes one event of the blocks first to first+n-1.
func (s *fakeSource) store(first, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	e := kvevent.RouterEvent{Owner: testOwner, ID: s.last, Kind: kvevent.Stored}
	for i := range n {
		h := kv.SequenceHash(first + i)
		s.blocks[h] = struct{}{}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h})
	}
	s.feed.Publish([]kvevent.RouterEvent{e})
}

// remove makes one event that takes the blocks first to first+n-1 away.
func (s *fakeSource) remove(first, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	e := kvevent.RouterEvent{Owner: testOwner, ID: s.last, Kind: kvevent.Removed}
	for i := range n {
		h := kv.SequenceHash(first + i)
		delete(s.blocks, h)
		e.Removed = append(e.Removed, h)
	}
	s.feed.Publish([]kvevent.RouterEvent{e})
}

func (s *fakeSource) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	clear(s.blocks)
	s.feed.Publish([]kvevent.RouterEvent{{Owner: testOwner, ID: s.last, Kind: kvevent.Cleared}})
}

func (s *fakeSource) setHealth(h kvevent.Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = h
	s.feed.HealthChanged(h)
}

func digest(blocks map[kv.SequenceHash]struct{}) (sum uint64) {
	for h := range blocks {
		sum += kv.Digest(h, kv.TierDevice)
	}
	return sum
}

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
func startFeed(t *testing.T, o Options) (*Conn, *Feed, *fakeSource) {
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
	src := newFakeSource()
	src.feed = f
	if err := f.Attach(src); err != nil {
		t.Fatal(err)
	}
	return n, f, src
}

func TestAnnouncementsFollowTheEventsTheyName(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	_, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Millisecond})
	if f.PublisherID() == 0 || f.PublisherID() >= 1<<53 {
		t.Errorf("publisher id %d", f.PublisherID())
	}
	const total = 2000
	go func() {
		for i := range total {
			src.store(i*3+1, 3)
		}
	}()
	var cursor, sequence uint64
	seen := make(map[kv.SequenceHash]struct{})
	for cursor < total {
		e, a := c.next()
		if a != nil {
			if a.LastEventID > cursor {
				t.Fatalf("announcement of event %d after event %d", a.LastEventID, cursor)
			}
			if a.LastEventID == cursor && a.Digest != digest(seen) {
				t.Fatalf("digest at event %d differs", cursor)
			}
			continue
		}
		if e.PublisherID != f.PublisherID() || e.Sequence != sequence || e.Topic != kvevent.Topic {
			t.Fatalf("envelope %d of %d, want %d of %d", e.Sequence, e.PublisherID, sequence, f.PublisherID())
		}
		sequence++
		for i := range e.Events {
			if e.Events[i].ID != cursor+1 {
				t.Fatalf("event %d after %d", e.Events[i].ID, cursor)
			}
			cursor++
		}
		maps.Copy(seen, blocksOf(e.Events))
	}
	a := c.announcement(func(a *kvevent.Announcement) bool { return a.LastEventID == total })
	waitFor(t, "the last message to be counted", func() bool { return f.Stats().Events == total })
	want := kvevent.Announcement{
		PublisherID: f.PublisherID(), Owner: testOwner, Pool: 9, Namespace: testMeta.Namespace, Model: "m", BlockSize: 16,
		LastEventID: total, Digest: digest(seen), Blocks: 3 * total, Health: kvevent.HealthExact,
	}
	if *a != want {
		t.Errorf("announcement %+v, want %+v", *a, want)
	}
	if s := f.Stats(); s.Events != total || s.Skipped != 0 || s.PublishErrors != 0 || s.Unsent != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestHealthChangeIsAnnouncedAtOnce(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	_, _, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	c.announcement(func(a *kvevent.Announcement) bool { return a.Health == kvevent.HealthExact })
	src.setHealth(kvevent.HealthDegraded)
	c.announcement(func(a *kvevent.Announcement) bool { return a.Health == kvevent.HealthDegraded })
}

func TestCloseSendsWhatIsQueuedAndThenGone(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	n, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	for i := range 500 {
		src.store(i+1, 1)
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
	src.store(1000, 1)
	if err := f.Attach(src); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("attach after close: %v", err)
	}
	if _, err := n.NewFeed(testOwner, testMeta); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("new feed after close: %v", err)
	}
}

func TestAttachRefusesAnotherOwnerAndASecondSource(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	n, f, src := startFeed(t, Options{URL: srv.URL()})
	if err := f.Attach(src); err == nil {
		t.Error("attached twice")
	}
	other, err := n.NewFeed(kv.PoolOwner(3), testMeta)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Attach(src); err == nil || !strings.Contains(err.Error(), "pool 3") {
		t.Errorf("foreign source: %v", err)
	}
}

func TestPublishNeverBlocksWithoutAServer(t *testing.T) {
	_, f, src := startFeed(t, Options{URL: "nats://127.0.0.1:1", ConnectTimeout: time.Millisecond})
	for i := range publisher.JournalEvents + 100 {
		src.store(i+1, 1)
	}
	if s := f.Stats(); s.Unsent != publisher.JournalEvents || s.Messages != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestFeedContinuesAfterTheServerWasAway(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{Token: "secret"})
	n, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour, ReconnectWait: 20 * time.Millisecond})
	src.store(1, 1)
	waitFor(t, "the first event", func() bool { return f.Stats().Events == 1 })
	port := serverPort(t, srv)
	srv.Close()
	waitFor(t, "the connection to end", func() bool { return !n.Connected() })
	for i := range publisher.JournalEvents + 10 {
		src.store(i+2, 1)
	}
	again := startServer(t, EmbeddedOptions{Token: "secret", Port: port})
	waitFor(t, "the connection to return", n.Connected)
	waitFor(t, "the journal to be sent", func() bool {
		s := f.Stats()
		return s.Unsent == 0 && s.Events+s.Skipped == publisher.JournalEvents+11
	})
	if s := f.Stats(); s.Skipped == 0 {
		t.Errorf("stats %+v", s)
	}
	// The announcement on return lets a consumer see that it lost something.
	waitFor(t, "an announcement", func() bool { return f.Stats().Announcements >= 2 })
	late := newConsumer(t, again.URL())
	f.HealthChanged(kvevent.HealthExact)
	late.announcement(func(*kvevent.Announcement) bool { return true })
	reply, _ := late.ask(f.PublisherID(), kvevent.QueryRequest{StartID: 2, HasStart: true})
	if reply.Kind != kvevent.QueryTreeDump || digest(blocksOf(reply.Events)) != src.Status().Digest {
		t.Errorf("answer %s with %d blocks", reply.Kind, len(blocksOf(reply.Events)))
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

// waitFor polls until cond holds, and fails the test if it does not in time.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("timed out: %s", what)
		case <-tick.C:
		}
	}
}

func storedEvent(id uint64, blocks int) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Owner: testOwner, ID: id, Kind: kvevent.Stored, Blocks: make([]kvevent.StoredBlock, blocks)}
	for i := range e.Blocks {
		e.Blocks[i].Hash = kv.SequenceHash(id*1000 + uint64(i))
	}
	return e
}
