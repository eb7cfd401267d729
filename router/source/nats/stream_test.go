package nats_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// messageAt takes frames until one that carries a message.
func messageAt(n *natssource.Source) source.Frame {
	for {
		if f := <-n.Frames(); f.Kind == source.FrameEvents || f.Kind == source.FrameAnnouncement {
			return f
		}
	}
}

// TestStreamIsReadOn: nothing comes before Resume; then come the messages after
// its position, each with its own, events and announcements in the order in which
// they were sent.
func TestStreamIsReadOn(t *testing.T) {
	url := natssource.StartDurableServer(t)
	first := natssource.ConnectDurable(t, url)
	first.Resume(0)
	p := sourcetest.NewWirePublisher(t, url, "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	sourcetest.Eventually(t, "the stream made and read", func() bool { return first.Stats().Connected })
	for i := range uint32(10) {
		p.SendStore("default", sourcetest.Tokens(i))
		p.SendAnnouncement("default")
	}
	want := []source.FrameKind{source.FrameEvents, source.FrameAnnouncement}
	for i := range 20 {
		if f := messageAt(first); f.Kind != want[i%2] || f.Position != uint64(i+1) {
			t.Fatalf("frame %d: kind %d at %d", i, f.Kind, f.Position)
		}
	}
	second := natssource.ConnectDurable(t, url)
	second.Resume(16)
	if f := messageAt(second); f.Position != 17 || f.Kind != source.FrameEvents {
		t.Errorf("after position 16: kind %d at %d", f.Kind, f.Position)
	}
	late := natssource.ConnectDurable(t, url)
	late.Resume(0)
	sourcetest.Eventually(t, "the late one to listen", func() bool { return late.Stats().Connected })
	p.SendAnnouncement("default")
	if f := messageAt(late); f.Position != 21 {
		t.Errorf("from now on: position %d, want 21", f.Position)
	}
}

// TestStreamThatWasMadeAnew: a position that a stream never had belongs to another
// stream, and everything in this one is news.
func TestStreamThatWasMadeAnew(t *testing.T) {
	url := natssource.StartDurableServer(t)
	first := natssource.ConnectDurable(t, url)
	first.Resume(0)
	p := sourcetest.NewWirePublisher(t, url, "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	sourcetest.Eventually(t, "the stream", func() bool { return first.Stats().Connected })
	p.SendAnnouncement("default")
	messageAt(first)
	other := natssource.ConnectDurable(t, url)
	other.Resume(1000)
	if f := messageAt(other); f.Position != 1 {
		t.Errorf("position %d, want 1", f.Position)
	}
}

// TestStreamBacklogIsNotThePresent: while old messages are read the router does
// not count as connected, so that nothing is called exact.
func TestStreamBacklogIsNotThePresent(t *testing.T) {
	url := natssource.StartDurableServer(t)
	first := natssource.ConnectDurable(t, url)
	first.Resume(0)
	p := sourcetest.NewWirePublisher(t, url, "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	sourcetest.Eventually(t, "the stream", func() bool { return first.Stats().Connected })
	const backlog = 1000
	for range backlog {
		p.SendAnnouncement("default")
	}
	for range backlog {
		messageAt(first)
	}
	second := natssource.ConnectDurable(t, url)
	second.Resume(1)
	// The reader is a few messages ahead of this test.
	for range backlog - 2*natssource.CaughtUp {
		messageAt(second)
		if second.Stats().Connected {
			t.Fatal("connected with a backlog")
		}
	}
	for range 2*natssource.CaughtUp - 1 {
		messageAt(second)
	}
	sourcetest.Eventually(t, "caught up", func() bool { return second.Stats().Connected })
}

// TestOnlyAStreamOfOthersIsFiltered: of a stream with more subjects come those of the cluster. A consumer of the cluster's own stream has
// no filter, with which a server takes milliseconds for each message of thousands of publishers.
func TestOnlyAStreamOfOthersIsFiltered(t *testing.T) {
	for _, more := range [][]string{nil, {"other"}} {
		url := natssource.StartDurableServer(t)
		conn, err := nats.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		subjects := kvevent.StreamSubjects("default")
		slices.Reverse(subjects)
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: kvevent.StreamName("default"), Subjects: append(subjects, more...)})
		if err != nil {
			t.Fatal(err)
		}
		n := natssource.ConnectDurable(t, url)
		n.Resume(0)
		sourcetest.Eventually(t, "the stream is read", func() bool { return n.Stats().Connected })
		p := sourcetest.NewWirePublisher(t, url, "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
		for range 3 {
			for _, subject := range more {
				p.Publish(subject, []byte("no announcement"))
			}
			p.SendAnnouncement("default")
		}
		for i := range uint64(3) {
			if f := messageAt(n); f.Kind != source.FrameAnnouncement || f.Position != (i+1)*uint64(1+len(more)) {
				t.Errorf("with %q: frame of kind %d at %d", more, f.Kind, f.Position)
			}
		}
		for c := range stream.ListConsumers(t.Context()).Info() {
			if got := len(c.Config.FilterSubjects); got != 2*len(more) {
				t.Errorf("with %q: a consumer with filters %q", more, c.Config.FilterSubjects)
			}
		}
	}
}

// TestForeignMessagesAreLeftOut: a stream gets the subjects of another cluster while a router reads it without filters, and loses
// them again before a router reads on. Neither router gets a message of the other cluster.
func TestForeignMessagesAreLeftOut(t *testing.T) {
	url := natssource.StartDurableServer(t)
	reader := natssource.ConnectDurable(t, url)
	reader.Resume(0)
	sourcetest.Eventually(t, "the stream made and read", func() bool { return reader.Stats().Connected })
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), kvevent.StreamName("default"))
	if err != nil {
		t.Fatal(err)
	}
	own := stream.CachedInfo().Config
	shared := own
	shared.Subjects = slices.Concat(own.Subjects, kvevent.StreamSubjects("other"))
	p := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
	stored := uint64(0)
	store := func(subject string) { // the stream sends no acknowledgements
		t.Helper()
		if err := conn.Publish(subject, p.Announcement()); err != nil {
			t.Fatal(err)
		}
		stored++
		sourcetest.Eventually(t, subject, func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && info.State.LastSeq == stored
		})
	}
	store(kvevent.AnnounceSubject("default", 11))
	messageAt(reader)
	if _, err := js.UpdateStream(t.Context(), shared); err != nil {
		t.Fatal(err)
	}
	store(kvevent.AnnounceSubject("other", 11))
	store(kvevent.EventsSubject("other", 11))
	store(kvevent.AnnounceSubject("default", 11))
	if _, err := js.UpdateStream(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	later := natssource.ConnectDurable(t, url)
	later.Resume(1)
	for name, n := range map[string]*natssource.Source{"before": reader, "after": later} {
		if f := messageAt(n); f.Kind != source.FrameAnnouncement || f.Position != 4 {
			t.Errorf("a router from %s: frame of kind %d at %d, want the cluster's at 4", name, f.Kind, f.Position)
		}
	}
}

// TestStreamLossIsAGap: what the stream has thrown away is found by the ids of
// the events, asked for, and had.
func TestStreamLossIsAGap(t *testing.T) {
	url := natssource.StartDurableServer(t)
	transport := natssource.ConnectDurable(t, url)
	r := routertest.RunOn(t, router.Options{}, transport)
	p := sourcetest.NewWirePublisher(t, url, "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	sourcetest.Eventually(t, "the stream", func() bool { return transport.Stats().Connected })
	p.SendAnnouncement("default")
	p.SendStore("default", sourcetest.Tokens(1))
	sourcetest.Eventually(t, "joined", func() bool { return routertest.DeviceHits(r, sourcetest.Tokens(1)) == 1 })
	p.Add(kvevent.Stored, 0, sourcetest.Tokens(2), 0) // never sent
	p.SendStore("default", sourcetest.Tokens(3))
	sourcetest.Eventually(t, "repaired", func() bool {
		return routertest.DeviceHits(r, sourcetest.Tokens(2)) == 1 && r.Feeds()[0].Counters.GapsRepaired == 1
	})
}

// TestSnapshotStoreOnNATS: what was saved last is loaded, also after a save that
// failed; one that was forgotten is not there.
func TestSnapshotStoreOnNATS(t *testing.T) {
	n := natssource.ConnectDurable(t, natssource.StartDurableServer(t))
	ctx := t.Context()
	load := func() (string, error) {
		var got []byte
		err := n.LoadSnapshot(ctx, func(r io.Reader) (err error) {
			got, err = io.ReadAll(r)
			return err
		})
		return string(got), err
	}
	save := func(text string, err error) error {
		return n.SaveSnapshot(ctx, 0, func(w io.Writer) error {
			_, writeErr := io.WriteString(w, text)
			return errors.Join(writeErr, err)
		})
	}
	if _, err := load(); !errors.Is(err, source.ErrNoSnapshot) {
		t.Errorf("before the first: %v", err)
	}
	long := strings.Repeat("long ", 1<<18)
	for _, text := range []string{"one", long, "three"} {
		if err := save(text, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := load(); err != nil || got != text {
			t.Errorf("%d bytes, %v; want %d", len(got), err, len(text))
		}
	}
	if n.Stats().SnapshotBytes != 5 {
		t.Errorf("stats %+v", n.Stats())
	}
	broken := errors.New("broken")
	if err := save(long, broken); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
	if got, err := load(); err != nil || got != "three" {
		t.Errorf("after a failed save: %d bytes, %v; want the former snapshot", len(got), err)
	}
	if err := save("four", nil); err != nil {
		t.Fatal(err)
	}
	if err := n.LoadSnapshot(ctx, func(io.Reader) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
	for range 2 {
		if err := n.ForgetSnapshot(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := load(); !errors.Is(err, source.ErrNoSnapshot) {
		t.Errorf("after it was forgotten: %v", err)
	}
}

// TestSnapshotsNeedJetStream: without it every call says so, and a server that has
// none is tried again and counted, not taken for silence.
func TestSnapshotsNeedJetStream(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	n, err := natssource.Connect(natssource.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.SaveSnapshot(t.Context(), 0, func(io.Writer) error { return nil }); !errors.Is(err, natssource.ErrNoJetStream) {
		t.Errorf("save: %v", err)
	}
	if err := n.ForgetSnapshot(t.Context()); !errors.Is(err, natssource.ErrNoJetStream) {
		t.Errorf("forget: %v", err)
	}
	durable := natssource.ConnectDurable(t, url)
	durable.Resume(0)
	sourcetest.Eventually(t, "a failure", func() bool { return durable.Stats().StreamFailures > 0 })
	if durable.Stats().Connected {
		t.Error("connected to a stream that cannot be")
	}
	if err := durable.SaveSnapshot(t.Context(), 0, func(io.Writer) error { return nil }); err == nil || !strings.Contains(err.Error(), "no JetStream") {
		t.Errorf("save on a server without JetStream: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := durable.LoadSnapshot(ctx, func(io.Reader) error { return nil }); err == nil {
		t.Error("a snapshot was loaded")
	}
}
