// Package httpfeed serves the native event stream over HTTP, for routers that
// have no NATS to listen to. They see the same messages: announcements,
// envelopes, load reports, and answers to queries (docs/events-http.md).
//
// A Hub is one agent's stream and serves any number of clients up to a bound; a
// Feed is one owner's publisher in it and keeps the rules of publisher.Feed:
//
//   - Publish never blocks. It copies events into a journal of the last 4,096 events
//     and at most 256 Ki blocks; one goroutine of each feed makes frames of them,
//     once for all clients.
//   - An announcement follows the events that it counts, is made once a second, on
//     a change of health and for every client that comes; the last one says that the
//     owner is gone.
//   - A query is answered with events out of the journal, or with a dump. Queries do not
//     wait for one another, but for snapshots, of which a bounded number is kept: all
//     who wait for one share it. An answer that takes too long is given up.
//
// Each client has a queue of a bounded number of bytes. Frames for which a slow
// client has no room are dropped and counted, on both sides: a heartbeat tells the
// client how many it lost. A loss is a gap in the ids of events, or an announcement
// that is missing for a second, and is repaired by asking.
//
// Locks: a stream's lock, then a feed's; a hub's, then a client's. A feed never
// calls its source with a lock held, and the source may call Publish from within
// Status.
//
// Ownership: a Hub is closed by who made it, after the streams that publish to it
// and before the HTTP server that its handlers run in. Close says goodbye for every
// feed and waits for the feeds' goroutines and the handlers. Everything here may be
// used from any goroutine.
//
// Failure: nothing that a client does is an error of the hub. A client that takes
// nothing for writeTimeout is cut off.
package httpfeed
