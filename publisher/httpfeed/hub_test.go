package httpfeed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// TestStreamOutlivesTheServersTimeouts: the server's bounds are for requests and answers.
func TestStreamOutlivesTheServersTimeouts(t *testing.T) {
	s := serve(t, Options{AnnounceEvery: time.Hour})
	c := s.follow("?events=all")
	c.announcement(anyAnnouncement)
	<-time.After(serverTimeout + serverTimeout/4)
	s.source.Store(1, 3)
	for _, e, _ := c.next(); e == nil; _, e, _ = c.next() {
	}
}

// TestAClientMayLeaveEventsOut: it is told who is there, and not what they hold.
func TestAClientMayLeaveEventsOut(t *testing.T) {
	s := serve(t, Options{AnnounceEvery: time.Millisecond})
	all, none := s.follow("?events=all"), s.follow("?events=none")
	for _, c := range []*follower{all, none} {
		c.announcement(anyAnnouncement)
	}
	s.source.Store(1, 3)
	for _, e, _ := all.next(); e == nil; _, e, _ = all.next() {
	}
	for announced := 0; announced < 100; {
		a, e, _ := none.next()
		if e != nil {
			t.Fatalf("an envelope of %d events", len(e.Events))
		}
		if a != nil && a.LastEventID == 1 {
			announced++
		}
	}
	kept := s.follow(fmt.Sprintf("?events=none&cursor=%016x:0", none.announcement(anyAnnouncement).PublisherID))
	if _, e, _ := kept.next(); e != nil {
		t.Errorf("events after a cursor are sent to a client that wants none")
	}
	if resp, err := http.Get(s.server.URL + "/v1/events?events=some"); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("%v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
}

// TestNoEventsAreSentWhereNobodyWantsThem: they are not even made into messages.
func TestNoEventsAreSentWhereNobodyWantsThem(t *testing.T) {
	s := serve(t, Options{AnnounceEvery: time.Millisecond})
	none := s.follow("?events=none")
	s.source.Store(1, 3)
	none.announcement(func(a *kvevent.Announcement) bool { return a.LastEventID == 1 })
	if got := s.feed.Stats(); got.Events != 0 {
		t.Errorf("%d events were sent", got.Events)
	}
	all := s.follow("")
	all.announcement(anyAnnouncement)
	s.source.Store(4, 3)
	for _, e, _ := all.next(); e == nil; _, e, _ = all.next() {
	}
}

// TestGoodbyeIsTheLastWord: Close of a feed, and of the hub, tell every client.
func TestGoodbyeIsTheLastWord(t *testing.T) {
	s := serve(t, Options{})
	c := s.follow("")
	c.announcement(anyAnnouncement)
	s.source.Store(1, 1)
	s.feed.Close()
	s.feed.Close()
	gone := c.announcement(func(a *kvevent.Announcement) bool { return a.Health == kvevent.HealthGone })
	if gone.LastEventID != 1 {
		t.Errorf("the last announcement names event %d", gone.LastEventID)
	}
	s.source.Store(2, 1)
	if got := s.feed.Stats(); got.AfterClose != 1 {
		t.Errorf("stats %+v, want one event after the close", got)
	}
	second, _ := s.newFeed(77)
	c.announcement(func(a *kvevent.Announcement) bool { return a.PublisherID == 77 })
	if err := s.hub.Close(); err != nil {
		t.Fatal(err)
	}
	c.announcement(func(a *kvevent.Announcement) bool { return a.PublisherID == 77 && a.Health == kvevent.HealthGone })
	if a, e, l := c.next(); a != nil || e != nil || l != nil {
		t.Error("something follows the goodbyes")
	}
	if _, err := s.hub.NewFeed(0, testOwner, testMeta); !errors.Is(err, ErrClosed) {
		t.Errorf("a feed of a closed hub: %v", err)
	}
	if err := second.Attach(publishertest.NewSource()); err == nil {
		t.Error("attached after the close")
	}
}

// TestCursorGivesWhatWasMissed: a client that comes back gets the events after its
// cursor, in order and without a hole before the live ones.
func TestCursorGivesWhatWasMissed(t *testing.T) {
	s := serve(t, Options{})
	for i := range 500 {
		s.source.Store(i+1, 1)
	}
	c := s.follow(fmt.Sprintf("?cursor=%016x:100&cursor=00000000000000ff:3", s.feed.PublisherID()))
	go s.source.Store(1000, 1)
	cursor := uint64(100)
	for cursor < 501 {
		if _, e, _ := c.next(); e != nil {
			for i := range e.Events {
				if id := e.Events[i].ID; id > cursor+1 {
					t.Fatalf("event %d after event %d", id, cursor)
				} else if id == cursor+1 {
					cursor = id
				}
			}
		}
	}
	resp, err := http.Get(s.server.URL + "/v1/events?cursor=xyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !strings.Contains(string(text), `cursor \"xyz\"`) {
		t.Errorf("a bad cursor: %d %s", resp.StatusCode, text)
	}
}

// TestSlowClientLosesFramesAndIsTold: its queue is bounded, the others lose nothing,
// and the heartbeat says how much it was.
func TestSlowClientLosesFramesAndIsTold(t *testing.T) {
	s := serve(t, Options{ClientBytes: 4096, AnnounceEvery: 5 * time.Millisecond})
	slow := newClient(4096, httptest.NewRecorder())
	if err := s.hub.join(slow); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		s.source.Store(i*40+1, 40)
	}
	publishertest.Eventually(t, "dropped", func() bool { return s.hub.Stats().Dropped > 0 })
	frames := slow.take(nil)
	bytes := 0
	for _, f := range frames[1:] {
		bytes += len(f)
	}
	if bytes > 4096 {
		t.Errorf("%d bytes wait for a client that may have 4096", bytes)
	}
	beat := slow.heartbeat()
	if beat[5] == 0 && beat[6] == 0 {
		t.Error("the heartbeat says that nothing was lost")
	}
	s.hub.leave(slow)
	// What it lost it can ask for.
	r, _, err := s.ask(s.feed.PublisherID(), kvevent.QueryRequest{StartID: 1, HasStart: true})
	if err != nil || r.Kind != kvevent.QueryEvents || len(r.Events) != 200 {
		t.Errorf("%s of %d events, %v", r.Kind, len(r.Events), err)
	}
}

// TestClientsAreBounded: one more than may be is refused and told so, and a place is
// free again when its client has gone.
func TestClientsAreBounded(t *testing.T) {
	s := serve(t, Options{MaxClients: 1})
	c := s.follow("")
	c.announcement(anyAnnouncement)
	resp, err := http.Get(s.server.URL + "/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "1 clients already") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	c.body.Close()
	publishertest.Eventually(t, "the place is free", func() bool { return s.hub.Stats().Clients == 0 })
	s.follow("").announcement(anyAnnouncement)
	if got := s.hub.Stats(); got.Refused != 1 {
		t.Errorf("stats %+v", got)
	}
}

// TestClientThatTakesNothingIsCutOff: it costs a bounded queue and, after a while, its
// place; the feed goes on as if it were not there.
func TestClientThatTakesNothingIsCutOff(t *testing.T) {
	s := serve(t, Options{MaxClients: 1, AnnounceEvery: 5 * time.Millisecond})
	s.hub.readTimeout = 50 * time.Millisecond
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	publishertest.Eventually(t, "served", func() bool { return s.hub.Stats().Clients == 1 })
	n := 0
	publishertest.Eventually(t, "cut off", func() bool {
		for range 50 {
			s.source.Store(n*400+1, 400)
			n++
		}
		return s.hub.Stats().Cut == 1
	})
	publishertest.Eventually(t, "its place is free", func() bool { return s.hub.Stats().Clients == 0 })
	s.follow("").announcement(func(a *kvevent.Announcement) bool { return a.LastEventID == uint64(n) })
}

// TestQueriesAreAnsweredAsOverNATS: the five answers, the same rules.
func TestQueriesAreAnsweredAsOverNATS(t *testing.T) {
	s := serve(t, Options{})
	for i := range 5000 { // more than the ring keeps
		s.source.Store(i+1, 1)
	}
	id := s.feed.PublisherID()
	for _, c := range []struct {
		name         string
		q            kvevent.QueryRequest
		kind         kvevent.QueryKind
		last         uint64
		events, more int // number of events, least number of chunks
	}{
		{"the newest", kvevent.QueryRequest{StartID: 4990, HasStart: true}, kvevent.QueryEvents, 5000, 11, 1},
		{"a range", kvevent.QueryRequest{StartID: 4000, HasStart: true, EndID: 4299, HasEnd: true}, kvevent.QueryEvents, 4299, 300, 3},
		{"beyond the end", kvevent.QueryRequest{StartID: 4999, HasStart: true, EndID: 9000, HasEnd: true}, kvevent.QueryEvents, 5000, 2, 1},
		{"no longer kept", kvevent.QueryRequest{StartID: 1, HasStart: true}, kvevent.QueryTreeDump, 5000, 10, 1},
		{"everything", kvevent.QueryRequest{}, kvevent.QueryTreeDump, 5000, 10, 1},
		{"not yet", kvevent.QueryRequest{StartID: 5001, HasStart: true}, kvevent.QueryTooNew, 5000, 0, 1},
		{"backwards", kvevent.QueryRequest{StartID: 9, HasStart: true, EndID: 8, HasEnd: true}, kvevent.QueryInvalidRange, 5000, 0, 1},
	} {
		r, chunks, err := s.ask(id, c.q)
		if err != nil || r.Kind != c.kind || r.LastEventID != c.last || len(r.Events) != c.events || chunks < c.more {
			t.Errorf("%s: %s up to %d of %d events in %d chunks, %v", c.name, r.Kind, r.LastEventID, len(r.Events), chunks, err)
		}
	}
	if got := s.feed.Stats(); got.Queries != 7 || got.Dumps != 2 {
		t.Errorf("stats %+v", got)
	}
	if _, _, err := s.ask(99, kvevent.QueryRequest{}); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("nobody: %v", err)
	}
	for path, body := range map[string]string{"?publisher=zz": "", fmt.Sprintf("?publisher=%016x", id): "nonsense"} {
		resp, err := http.Post(s.server.URL+"/v1/events/query"+path, "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
	if got := s.feed.Stats(); got.BadQueries != 1 {
		t.Errorf("stats %+v", got)
	}
}

func TestFeedsAreListed(t *testing.T) {
	s := serve(t, Options{})
	s.source.Store(1, 2)
	resp, err := http.Get(s.server.URL + "/v1/events/feeds")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Clients int
		Feeds   []feedJSON
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got.Feeds) != 1 {
		t.Fatalf("%d feeds", len(got.Feeds))
	}
	f := got.Feeds[0]
	if f.PublisherID != fmt.Sprintf("%016x", s.feed.PublisherID()) || f.Owner != "worker 7/0" || f.LastEventID != 1 ||
		f.Blocks != 2 || f.KeptFrom != 1 || f.KeptTo != 1 || f.Health != kvevent.HealthExact {
		t.Errorf("feed %+v", f)
	}
}

func TestLoadReportsReachTheClients(t *testing.T) {
	s := serve(t, Options{})
	want := kvevent.LoadReport{PublisherID: 5, Owner: kv.PoolOwner(9), Pool: kvevent.PoolLoad{ReadQueue: 3}}
	s.hub.PublishLoad(&want) // nobody is there
	c := s.follow("")
	c.announcement(anyAnnouncement)
	s.hub.PublishLoad(&want)
	for {
		a, e, l := c.next()
		if l != nil {
			if *l != want {
				t.Errorf("report %+v", *l)
			}
			return
		}
		if a == nil && e == nil {
			t.Fatal("the stream ended")
		}
	}
}

func TestBadOptionsAndFeedsAreRefused(t *testing.T) {
	for _, o := range []Options{{AnnounceEvery: -1}, {MaxClients: -1}, {ClientBytes: -1}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	s := serve(t, Options{})
	if _, err := s.hub.NewFeed(1<<53, testOwner, testMeta); err == nil {
		t.Error("an id beyond 2^53 was accepted")
	}
	if _, err := s.hub.NewFeed(s.feed.PublisherID(), testOwner, testMeta); err == nil {
		t.Error("an id was given twice")
	}
}
