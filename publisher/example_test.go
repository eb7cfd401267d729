package publisher_test

import (
	"fmt"
	"log"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// printer is a Transport that prints messages. publisher/nats and publisher/httpfeed have
// real ones.
type printer struct{}

func (printer) Gate() publisher.Gate { return publisher.GateOpen }
func (printer) MaxMessage() int      { return 1 << 20 }

func (printer) SendEvents(e *kvevent.Envelope) bool {
	for _, event := range e.Events {
		fmt.Println("event", event.ID, event.Kind, event.NumBlocks(), "blocks")
	}
	return true
}

func (printer) SendAnnouncement(a *kvevent.Announcement) bool {
	if a.Health == kvevent.HealthGone {
		fmt.Println(a.Owner, "is gone after event", a.LastEventID)
	}
	return true
}

// A feed publishes the events of a stream, and says so when the owner has gone.
func Example() {
	src := publishertest.NewSource() // as a residency.Stream
	feed := publisher.NewFeed(publisher.FeedOptions{
		ID: 1, Owner: src.Owner(), AnnounceEvery: time.Second, Transport: printer{},
		Meta: publisher.Meta{Model: "tiny", BlockSize: 16},
	})
	src.Sink = feed
	if err := feed.Attach(src); err != nil {
		log.Fatal(err)
	}
	src.Store(1, 3)
	src.Remove(3, 1)
	feed.Close()
	// Output:
	// event 1 stored 3 blocks
	// event 2 removed 1 blocks
	// worker 7/0 is gone after event 2
}
