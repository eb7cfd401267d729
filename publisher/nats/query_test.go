package nats

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

func TestLateConsumerConvergesByADump(t *testing.T) {
	for name, payload := range map[string]int32{"default limit": 0, "smallest limit": minPayload} {
		t.Run(name, func(t *testing.T) {
			srv := startServer(t, EmbeddedOptions{MaxPayload: payload})
			_, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: 5 * time.Millisecond})
			for i := range 100 {
				src.Store(i*300+1, 300)
			}
			c := newConsumer(t, srv.URL())
			a := c.announcement(func(a *kvevent.Announcement) bool { return a.LastEventID == 100 })
			reply, chunks := c.ask(a.PublisherID, kvevent.QueryRequest{})
			if reply.Kind != kvevent.QueryTreeDump || reply.LastEventID != 100 {
				t.Fatalf("answer %s up to event %d", reply.Kind, reply.LastEventID)
			}
			if got := publishertest.Digest(publishertest.Blocks(reply.Events)); got != a.Digest {
				t.Errorf("digest %x, announced %x", got, a.Digest)
			}
			if chunks < 30000/kvevent.MaxBlocksPerMessage+1 {
				t.Errorf("30,000 blocks in %d chunks", chunks)
			}
			if s := f.Stats(); s.Dumps != 1 || s.PublishErrors != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestQueryAnswers(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	_, f, src := startFeed(t, Options{URL: srv.URL()})
	c.announcement(func(*kvevent.Announcement) bool { return true })

	if reply, _ := c.ask(f.PublisherID(), kvevent.QueryRequest{}); reply.Kind != kvevent.QueryTreeDump || len(reply.Events) != 0 || reply.LastEventID != 0 {
		t.Errorf("dump of nothing: %+v", reply)
	}
	for i := range 300 {
		src.Store(i+1, 1)
	}
	for _, tc := range []struct {
		name        string
		q           kvevent.QueryRequest
		kind        kvevent.QueryKind
		first, last uint64
	}{
		{"from the start", kvevent.QueryRequest{StartID: 0, HasStart: true}, kvevent.QueryEvents, 1, 300},
		{"to the newest", kvevent.QueryRequest{StartID: 5, HasStart: true}, kvevent.QueryEvents, 5, 300},
		{"a range", kvevent.QueryRequest{StartID: 5, HasStart: true, EndID: 9, HasEnd: true}, kvevent.QueryEvents, 5, 9},
		{"one event", kvevent.QueryRequest{StartID: 300, HasStart: true, EndID: 300, HasEnd: true}, kvevent.QueryEvents, 300, 300},
		{"past the end", kvevent.QueryRequest{StartID: 5, HasStart: true, EndID: 900, HasEnd: true}, kvevent.QueryEvents, 5, 300},
		{"too new", kvevent.QueryRequest{StartID: 301, HasStart: true}, kvevent.QueryTooNew, 0, 300},
		{"backwards", kvevent.QueryRequest{StartID: 9, HasStart: true, EndID: 5, HasEnd: true}, kvevent.QueryInvalidRange, 0, 300},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reply, _ := c.ask(f.PublisherID(), tc.q)
			if reply.Kind != tc.kind || reply.LastEventID != tc.last {
				t.Fatalf("answer %s up to event %d, want %s up to %d", reply.Kind, reply.LastEventID, tc.kind, tc.last)
			}
			if tc.first == 0 {
				if len(reply.Events) > 0 || reply.Message == "" {
					t.Errorf("answer %+v", reply)
				}
				return
			}
			for i, e := range reply.Events {
				if e.ID != tc.first+uint64(i) {
					t.Fatalf("event %d at %d", e.ID, i)
				}
			}
			if uint64(len(reply.Events)) != tc.last-tc.first+1 {
				t.Errorf("%d events", len(reply.Events))
			}
		})
	}
	if reply, _ := c.query(f.PublisherID(), []byte("garbage")); reply.Kind != kvevent.QueryError || reply.LastEventID != 300 || reply.Message == "" {
		t.Errorf("answer to garbage: %+v", reply)
	}
	if err := c.conn.Publish(kvevent.QuerySubject("default", f.PublisherID()), nil); err != nil {
		t.Fatal(err)
	}
	publishertest.Eventually(t, "the request without reply subject", func() bool { return f.Stats().BadQueries == 2 })
}

func TestConnectErrorsNameTheFieldAndHideCredentials(t *testing.T) {
	for field, o := range map[string]Options{
		"cluster":         {Cluster: "a.b"},
		"url":             {URL: "nats://user:hunter2@ho st:4222"},
		"server 2":        {URL: "nats://127.0.0.1:1,http://user:hunter2@127.0.0.1:4222"},
		"connect timeout": {ConnectTimeout: -1},
		"announce period": {AnnounceEvery: -1},
	} {
		_, err := Connect(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", field, err)
		}
	}
	srv := startServer(t, EmbeddedOptions{Token: "right"})
	wrong := strings.Replace(srv.URL(), "right", "hunter2", 1)
	if _, err := Connect(t.Context(), Options{URL: wrong}); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("wrong token: %v", err)
	}
	small := startServer(t, EmbeddedOptions{MaxPayload: 1000})
	if _, err := Connect(t.Context(), Options{URL: small.URL()}); err == nil || !strings.Contains(err.Error(), "max_payload 1000") {
		t.Errorf("small messages: %v", err)
	}
}

// TestHintsArePassedOn: read-ahead hints for the feed's owner are passed on until the feed closes.
func TestHintsArePassedOn(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	conn, f, _ := startFeed(t, Options{URL: srv.URL()})
	c.announcement(func(*kvevent.Announcement) bool { return true })
	got := make(chan string, 4)
	if err := f.TakeHints(func(data []byte) { got <- string(data) }); err != nil {
		t.Fatal(err)
	}
	if err := conn.conn.Flush(); err != nil { // the server has the subscription
		t.Fatal(err)
	}
	subject := kvevent.ReadAheadSubject(conn.opt.Cluster, f.PublisherID())
	send := func(data string) {
		if err := errors.Join(c.conn.Publish(subject, []byte(data)), c.conn.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	send("hint")
	if data := <-got; data != "hint" {
		t.Errorf("got %q", data)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	send("late")
	if err := f.TakeHints(func([]byte) {}); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("TakeHints of a closed feed: %v", err)
	}
	if len(got) != 0 || f.Stats().DroppedHints != 0 {
		t.Errorf("%d hints after Close, stats %+v", len(got), f.Stats())
	}
}
