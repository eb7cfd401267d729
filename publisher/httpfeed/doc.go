// Package httpfeed serves owners' events over HTTP, for routers without NATS.
//
//	hub, err := httpfeed.New(httpfeed.Options{})
//	hub.Register(mux) // GET /v1/events, GET /v1/events/feeds, POST /v1/events/query
//	feed, err := hub.NewFeed(0, owner, meta)
//	stream.AddSink(feed)
//	err = feed.Attach(src)
//
// A [Hub] is one agent's stream and serves a bounded number of clients. A [Feed] is one
// owner's publisher in it; package publisher says what a feed guarantees. Clients see the
// messages of NATS as frames: docs/events-http.md.
//
// Each client has a queue of a bounded number of bytes. A frame without room in the queue
// is dropped and counted. A heartbeat tells the client how many frames it lost. The client
// finds the loss as a gap in the event ids, or as an announcement that is missing for a
// second, and asks.
//
// Queries do not wait for one another. At most four snapshots of a feed are kept while
// they are written; queries that need another one wait and share it.
//
// Locks: a hub's, then a client's. Feed.mu is a leaf.
//
// Ownership: the creator of a Hub closes it, after the streams that publish to it and
// before the HTTP server of its handlers. Close announces for every feed that its owner is
// gone, and waits for the feeds' goroutines and the handlers. Everything here may be used
// from any goroutine.
//
// Failure: nothing that a client does is an error of the hub. A client that reads nothing
// for five seconds is cut off. An answer that takes longer than thirty seconds ends early.
package httpfeed
