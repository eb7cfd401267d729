package publisher_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// wire is a transport that records what a feed sends.
type wire struct {
	mu     sync.Mutex
	gate   publisher.Gate
	refuse bool
	// sent has the ids of events and, as 0, announcements, in order.
	sent  []uint64
	sizes []int // events of each envelope
	seqs  []uint64
	last  kvevent.Announcement
}

func (w *wire) set(gate publisher.Gate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gate = gate
}

func (w *wire) Gate() publisher.Gate {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gate
}

func (w *wire) MaxMessage() int { return 64 << 10 }

func (w *wire) SendEvents(e *kvevent.Envelope) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range e.Events {
		w.sent = append(w.sent, e.Events[i].ID)
	}
	w.sizes, w.seqs = append(w.sizes, len(e.Events)), append(w.seqs, e.Sequence)
	return !w.refuse
}

func (w *wire) SendAnnouncement(a *kvevent.Announcement) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent, w.last = append(w.sent, 0), *a
	return !w.refuse
}

func (w *wire) announced() kvevent.Announcement {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

var meta = publisher.Meta{Pool: 9, Namespace: kv.NamespaceID{1, 2}, Model: "m", BlockSize: 16, Card: kvevent.ModelCard{Ranks: 2}}

// startFeed attaches a feed of a new source to a new wire. It announces only when told to.
func startFeed(t *testing.T, gate publisher.Gate) (*publisher.Feed, *publishertest.Source, *wire) {
	t.Helper()
	w := &wire{gate: gate}
	f := publisher.NewFeed(publisher.FeedOptions{ID: 5, Owner: publishertest.Owner, Meta: meta, AnnounceEvery: time.Hour, Transport: w})
	t.Cleanup(f.Close)
	src := publishertest.NewSource()
	src.Sink = f
	if err := f.Attach(src); err != nil {
		t.Fatal(err)
	}
	return f, src, w
}

func TestFeedSendsEveryEventOnceAndAnnouncesBehindThem(t *testing.T) {
	f, src, w := startFeed(t, publisher.GateOpen)
	for i := range 1000 {
		src.Store(i*10+1, 10)
		if i%100 == 0 {
			f.Announce()
		}
	}
	publishertest.Eventually(t, "all are sent", func() bool { s, _ := f.Stats(); return s.Events == 1000 })
	src.SetHealth(kvevent.HealthDegraded)
	publishertest.Eventually(t, "the health is announced", func() bool { return w.announced().Health == kvevent.HealthDegraded })
	status := src.Status()
	want := kvevent.Announcement{
		PublisherID: 5, Owner: publishertest.Owner, Pool: 9, Namespace: meta.Namespace, Model: "m", BlockSize: 16, Card: meta.Card,
		LastEventID: 1000, Digest: status.Digest, Blocks: 10_000, Health: kvevent.HealthDegraded,
	}
	if got := w.announced(); got != want {
		t.Errorf("announced %+v, want %+v", got, want)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := slices.DeleteFunc(slices.Clone(w.sent), func(id uint64) bool { return id == 0 })
	for i, id := range ids {
		if id != uint64(i)+1 {
			t.Fatalf("event %d follows %d others", id, i)
		}
	}
	for i, seq := range w.seqs {
		if seq != uint64(i) || w.sizes[i] > kvevent.MaxEventsPerMessage {
			t.Errorf("message %d has number %d and %d events", i, seq, w.sizes[i])
		}
	}
}

func TestFeedKeepsOrDiscardsEventsBehindItsGate(t *testing.T) {
	for name, tc := range map[string]struct {
		gate    publisher.Gate
		unsent  uint64
		sent    uint64 // after the gate opens
		skipped uint64
	}{
		"held":    {publisher.GateHeld, publisher.JournalEvents, publisher.JournalEvents, 9},
		"discard": {publisher.GateDiscard, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, src, w := startFeed(t, publisher.GateOpen)
			src.Store(1, 1)
			publishertest.Eventually(t, "the first is sent", func() bool { s, _ := f.Stats(); return s.Events == 1 })
			w.set(tc.gate)
			for i := range publisher.JournalEvents + 9 {
				src.Store(i+2, 1)
			}
			publishertest.Eventually(t, "the gate is seen", func() bool { _, unsent := f.Stats(); return unsent == tc.unsent })
			w.set(publisher.GateOpen)
			f.Announce()
			publishertest.Eventually(t, "an announcement", func() bool { return w.announced().LastEventID == publisher.JournalEvents+10 })
			if s, unsent := f.Stats(); s.Events != 1+tc.sent || s.Skipped != tc.skipped || unsent != 0 {
				t.Errorf("%+v, %d unsent; want %d events and %d skipped", s, unsent, 1+tc.sent, tc.skipped)
			}
		})
	}
}

func TestFeedCloseSendsTheRestAndThenGone(t *testing.T) {
	f, src, w := startFeed(t, publisher.GateOpen)
	for i := range 500 {
		src.Store(i+1, 1)
	}
	f.Close()
	f.Close()
	if got := w.announced(); got.Health != kvevent.HealthGone || got.LastEventID != 500 {
		t.Errorf("the last announcement is %+v", got)
	}
	src.Store(1000, 1)
	if s, unsent := f.Stats(); s.Events != 500 || s.AfterClose != 1 || unsent != 0 {
		t.Errorf("%+v, %d unsent", s, unsent)
	}
	if err := f.Attach(src); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("attach after close: %v", err)
	}
}

func TestFeedCountsWhatCloseLeavesUnsent(t *testing.T) {
	f, src, _ := startFeed(t, publisher.GateHeld)
	src.Store(1, 1)
	f.Close()
	if s, unsent := f.Stats(); s.Skipped != 1 || unsent != 0 || s.Events != 0 {
		t.Errorf("%+v, %d unsent", s, unsent)
	}
}

func TestMessagesThatDoNotLeaveAreNotCounted(t *testing.T) {
	f, src, w := startFeed(t, publisher.GateHeld)
	w.mu.Lock()
	w.refuse, w.gate = true, publisher.GateOpen
	w.mu.Unlock()
	before, _ := f.Stats()
	src.Store(1, 1)
	f.Announce()
	publishertest.Eventually(t, "the event is refused", func() bool { _, unsent := f.Stats(); return unsent == 0 && w.announced().LastEventID == 1 })
	if s, _ := f.Stats(); s.Events != 0 || s.Announcements > before.Announcements+1 {
		t.Errorf("%+v", s)
	}
}

func TestAttachRefusesAnotherOwnerASecondSourceAndFailedPreparations(t *testing.T) {
	f, src, _ := startFeed(t, publisher.GateOpen)
	if err := f.Attach(src); err == nil {
		t.Error("attached twice")
	}
	o := publisher.FeedOptions{ID: 6, Owner: kv.PoolOwner(3), AnnounceEvery: time.Hour, Transport: &wire{}}
	if err := publisher.NewFeed(o).Attach(src); err == nil || !strings.Contains(err.Error(), "pool 3") {
		t.Errorf("foreign source: %v", err)
	}
	o.Owner = publishertest.Owner
	other, failure := publisher.NewFeed(o), errors.New("no subscription")
	if err := other.AttachWith(src, func() error { return failure }); !errors.Is(err, failure) || other.Source() != nil {
		t.Errorf("failed preparation: %v, source %v", err, other.Source())
	}
}
