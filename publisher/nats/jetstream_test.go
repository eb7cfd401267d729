package nats

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// streamState asks a server for the state of a cluster's stream.
func streamState(t *testing.T, url string) jetstream.StreamInfo {
	t.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), kvevent.StreamName("default"))
	if err != nil {
		t.Fatal(err)
	}
	return *s.CachedInfo()
}

// TestStreamKeepsWhatIsPublished: with JetStream the server keeps events and
// announcements in the order in which they were sent, within the limits that were
// asked for, and has them after a restart from its directory.
func TestStreamKeepsWhatIsPublished(t *testing.T) {
	dir := t.TempDir()
	srv := startServer(t, EmbeddedOptions{StoreDir: dir, Token: "secret"})
	n, f, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour, ReconnectWait: 10 * time.Millisecond,
		JetStream: &JetStream{MaxAge: time.Minute, MaxBytes: 4 << 20}})
	if !n.Stats().StreamReady {
		t.Fatal("the stream is not there after the connection was made")
	}
	for i := range 300 {
		src.Store(i+1, 1)
	}
	publishertest.Eventually(t, "the events", func() bool { return f.Stats().Events == 300 })
	messages := f.Stats().Messages
	publishertest.Eventually(t, "the stream to have them", func() bool { return streamState(t, srv.URL()).State.Msgs == messages })
	info := streamState(t, srv.URL())
	if c := info.Config; c.MaxAge != time.Minute || c.MaxBytes != 4<<20 || c.Storage != jetstream.FileStorage || len(c.Subjects) != 2 {
		t.Errorf("stream %+v", c)
	}
	srv.Close()
	publishertest.Eventually(t, "the connection to end", func() bool { return !n.Connected() })
	again := startServer(t, EmbeddedOptions{StoreDir: dir, Token: "secret", Port: serverPort(t, srv)})
	publishertest.Eventually(t, "the connection to return", n.Connected)
	if got := streamState(t, again.URL()).State; got.Msgs < messages {
		t.Errorf("%d messages after the restart, want at least %d", got.Msgs, messages)
	}
	// Waited for, so that the server does not go while the stream is looked for.
	publishertest.Eventually(t, "the stream again", func() bool { return n.Stats().StreamReady && n.Stats().Reconnects == 1 })
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// TestStreamIsMadeWhenTheServerComes: an agent that starts before its server makes
// the stream as soon as there is one.
func TestStreamIsMadeWhenTheServerComes(t *testing.T) {
	probe := startServer(t, EmbeddedOptions{Token: "secret"})
	port := serverPort(t, probe)
	probe.Close()
	n, _, _ := startFeed(t, Options{URL: probe.URL(), ConnectTimeout: 10 * time.Millisecond, ReconnectWait: 10 * time.Millisecond, JetStream: &JetStream{}})
	if n.Stats().StreamReady {
		t.Error("a stream is said to be there without a server")
	}
	srv := startServer(t, EmbeddedOptions{StoreDir: t.TempDir(), Token: "secret", Port: port})
	publishertest.Eventually(t, "the stream", func() bool { return n.Stats().StreamReady })
	if got := streamState(t, srv.URL()).Config; got.MaxAge != time.Hour || got.MaxBytes != 1<<30 || got.Replicas != 1 {
		t.Errorf("stream %+v", got)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

func TestJetStreamErrorsNameWhatIsWrong(t *testing.T) {
	for field, j := range map[string]JetStream{
		"stream":    {Stream: "a.b"},
		"max age":   {MaxAge: time.Millisecond},
		"max bytes": {MaxBytes: 1000},
		"replicas":  {Replicas: 6},
	} {
		o := Options{JetStream: &j}
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "jetstream "+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	srv := startServer(t, EmbeddedOptions{})
	_, err := Connect(t.Context(), Options{URL: srv.URL(), JetStream: &JetStream{}})
	if err == nil || !strings.Contains(err.Error(), "jetstream stream blockyard-default") {
		t.Errorf("a server without JetStream: %v", err)
	}
	if _, err := StartEmbedded(EmbeddedOptions{MaxStore: -1}); err == nil || !strings.Contains(err.Error(), "max store") {
		t.Errorf("max store: %v", err)
	}
}

func TestPublishTellsWhatIsTooLong(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{MaxPayload: minPayload})
	c := newConsumer(t, srv.URL())
	n, _, _ := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	if n.MaxPayload() != minPayload {
		t.Errorf("max payload %d, want %d", n.MaxPayload(), minPayload)
	}
	if err := n.Publish("elsewhere", make([]byte, minPayload+1)); err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("too long: %v", err)
	}
	c.announcement(func(*kvevent.Announcement) bool { return true })
	if err := n.Publish(kvevent.AnnounceSubject("default", 5), kvevent.AppendAnnouncement(nil, &kvevent.Announcement{
		PublisherID: 5, Owner: testOwner, Health: kvevent.HealthExact})); err != nil {
		t.Fatal(err)
	}
	if a := c.announcement(func(a *kvevent.Announcement) bool { return a.PublisherID == 5 }); a.Owner != testOwner {
		t.Errorf("announcement of %s", a.Owner)
	}
}
