package nats_test

import (
	"context"
	"fmt"
	"log"

	client "github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// A feed publishes a stream on an embedded NATS server, from which a subscriber gets it.
func Example() {
	server, err := nats.StartEmbedded(nats.EmbeddedOptions{})
	check(err)
	defer server.Close()
	subscriber, err := client.Connect(server.URL())
	check(err)
	defer subscriber.Close()
	events, err := subscriber.SubscribeSync(kvevent.AllEventsSubject("default"))
	check(err)
	check(subscriber.Flush())

	conn, err := nats.Connect(context.Background(), nats.Options{URL: server.URL()})
	check(err)
	src := publishertest.NewSource() // as a residency.Stream
	feed, err := conn.NewFeed(src.Owner(), publisher.Meta{Model: "tiny", BlockSize: 16})
	check(err)
	src.Sink = feed
	check(feed.Attach(src))
	src.Store(1, 3)

	message, err := events.NextMsgWithContext(context.Background())
	check(err)
	var decoder kvevent.EnvelopeDecoder
	var envelope kvevent.Envelope
	check(decoder.Decode(message.Data, &envelope))
	for _, e := range envelope.Events {
		fmt.Println(e.Owner, "event", e.ID, e.Kind, e.NumBlocks(), "blocks in", e.Tier)
	}
	check(conn.Close()) // closes the feed first
	// Output:
	// worker 7/0 event 1 stored 3 blocks in device
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
