package nats

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// TestAStatusIsOfThisMoment: every status comes after all events that it counts and before the next one,
// while three feeds publish without a pause.
func TestAStatusIsOfThisMoment(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	n, first, src := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: 2 * time.Millisecond})
	feeds, sources := []*Feed{first}, []*publishertest.Source{src}
	for range 2 {
		f, err := n.NewFeed(testOwner, testMeta)
		if err != nil {
			t.Fatal(err)
		}
		s := publishertest.NewSource()
		s.Sink = f
		if err := f.Attach(s); err != nil {
			t.Fatal(err)
		}
		feeds, sources = append(feeds, f), append(sources, s)
	}
	var writing sync.WaitGroup
	stop := make(chan struct{})
	var unread atomic.Int64 // NATS drops messages when the consumer's channel is full
	for i, s := range sources {
		writing.Go(func() {
			for block := 1; ; {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(i) * 100 * time.Microsecond):
				}
				if unread.Load() < 1000 {
					unread.Add(1)
					s.Store(block, 1)
					block++
				}
			}
		})
	}
	defer func() {
		close(stop)
		writing.Wait()
	}()
	cursor, seen := make(map[uint64]uint64), 0
	for statuses := 0; statuses < 100; {
		e, _, status := c.any()
		switch {
		case e != nil:
			cursor[e.PublisherID] = e.Events[len(e.Events)-1].ID
			unread.Add(-int64(len(e.Events)))
		case status != nil:
			statuses++
			for _, one := range status.Streams {
				if one.LastEventID != cursor[one.PublisherID] || one.Kind != kv.OwnerWorker || one.Health != kvevent.HealthExact {
					t.Fatalf("status %+v after event %d", one, cursor[one.PublisherID])
				}
				seen++
			}
		}
	}
	if got := n.Stats(); seen != 100*len(feeds) || got.Statuses < 100 || got.StatusErrors != 0 {
		t.Errorf("%d streams in 100 statuses of %d feeds; %+v", seen, len(feeds), got)
	}
}

// TestAnAgentWithManyStreamsSendsSeveralStatuses: none is longer than readers take.
func TestAnAgentWithManyStreamsSendsSeveralStatuses(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	c := newConsumer(t, srv.URL())
	n, err := Connect(t.Context(), Options{URL: srv.URL(), AnnounceEvery: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	missing := make(map[uint64]bool)
	for range kvevent.MaxAgentStreams + 1 {
		f, err := n.NewFeed(testOwner, testMeta)
		if err == nil {
			err = f.Attach(publishertest.NewSource())
		}
		if err != nil {
			t.Fatal(err)
		}
		missing[f.PublisherID()] = true
	}
	agents := make(map[uint64]bool)
	for len(missing) > 0 {
		if _, _, status := c.any(); status != nil {
			agents[status.Agent] = true
			for _, one := range status.Streams {
				delete(missing, one.PublisherID)
			}
		}
	}
	if len(agents) != 1 {
		t.Errorf("%d agents", len(agents))
	}
}

// TestAnAgentThatIsAskedAnnouncesAllItsFeeds although no announcement is due.
func TestAnAgentThatIsAskedAnnouncesAllItsFeeds(t *testing.T) {
	srv := startServer(t, EmbeddedOptions{})
	n, f, _ := startFeed(t, Options{URL: srv.URL(), AnnounceEvery: time.Hour})
	other, err := n.NewFeed(testOwner, testMeta)
	if err == nil {
		err = other.Attach(publishertest.NewSource())
	}
	if err != nil {
		t.Fatal(err)
	}
	c := newConsumer(t, srv.URL()) // what is announced now is asked for, or was on its way
	if err := c.conn.Publish(kvevent.AnnounceAskSubject("default", n.statuses.agent), nil); err != nil {
		t.Fatal(err)
	}
	missing := map[uint64]bool{f.PublisherID(): true, other.PublisherID(): true}
	for len(missing) > 0 {
		if _, a := c.next(); a != nil {
			delete(missing, a.PublisherID)
		}
	}
	if got := n.Stats().AnnouncementAsks; got != 1 {
		t.Errorf("%d questions", got)
	}
}
