package httpfeed_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
	"github.com/blockyard-ai/blockyard/publisher/publishertest"
)

// A hub serves a stream over HTTP, and a client follows it.
func Example() {
	hub, err := httpfeed.New(httpfeed.Options{})
	check(err)
	mux := http.NewServeMux()
	hub.Register(mux)
	server := httptest.NewServer(mux)

	src := publishertest.NewSource() // as a residency.Stream
	feed, err := hub.NewFeed(0, src.Owner(), publisher.Meta{Model: "tiny", BlockSize: 16})
	check(err)
	src.Sink = feed
	check(feed.Attach(src))

	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.URL+"/v1/events", http.NoBody)
	check(err)
	response, err := server.Client().Do(request)
	check(err)
	src.Store(1, 3)
	frames, kind, body := bufio.NewReader(response.Body), kvevent.StreamKind(0), []byte(nil)
	for kind != kvevent.StreamEvents { // announcements come first
		kind, body, err = kvevent.ReadStreamFrame(frames, body)
		check(err)
	}
	var decoder kvevent.EnvelopeDecoder
	var envelope kvevent.Envelope
	check(decoder.Decode(body, &envelope))
	for _, e := range envelope.Events {
		fmt.Println(e.Owner, "event", e.ID, e.Kind, e.NumBlocks(), "blocks in", e.Tier)
	}
	check(response.Body.Close())
	check(hub.Close()) // closes the feed first
	server.Close()
	// Output:
	// worker 7/0 event 1 stored 3 blocks in device
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
