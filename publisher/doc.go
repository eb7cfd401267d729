// Package publisher puts streams of router events on NATS, and answers the
// consumers that have lost some of them.
//
// A NATS is a connection; a Feed is one owner's publisher on it, with an id of
// its own that is new at every start. Three things of a feed go over the wire
// (subjects in internal/kvevent):
//
//   - events, in envelopes within the limits of kvevent and of the server;
//   - announcements: once a second, when the feed is attached, when its health
//     changes and when the connection is back, each with the last event id and
//     the digest of the state after it; the last one says that the owner is gone;
//   - answers to queries: a range of the journal, or a dump of the whole state.
//
// Ranges are answered at once, dumps to all who wait for one together and not
// faster than a router can take them. A dump is kept for ten seconds and brought
// up to date with the events since, so that routers that start together cost one
// snapshot; there is never more than one of a feed in memory.
//
// Core NATS may lose any of these messages. With NATSOptions.JetStream a stream of
// the server keeps events and announcements for routers that read from it; the
// feed publishes as before, and waits for no acknowledgement. Events carry contiguous ids and
// announcements say which id was last, so a consumer always finds out what it
// lost, and asks. That is the only repair: nothing is sent twice.
//
// Publish never blocks, as its caller holds a stream's lock. It copies events
// into the feed's journal, a ring of the last 4,096 events and at most 256 Ki
// blocks, from which one goroutine sends them and another answers ranges. Events
// that leave the journal before they could be sent (the connection is away, or
// slower than the stream) are counted and not sent; the state that a dump serves
// is the spool, and no queue can grow.
//
// Order: what Publish was given before Source.Status returned is sent before
// the announcement of that status.
//
// Locks: stream lock, then feed lock. A feed never calls its source with its
// own lock held, and the source may call Publish from within Status.
//
// Ownership: a Feed is closed by its owner, or with its NATS. Close waits for
// the feed's goroutines. Everything here may be used from any goroutine.
//
// Failure: a server that is away is reconnected to for ever. ConnectNATS returns
// an error only for options that cannot work, for refused credentials and for a
// server without the JetStream that was asked for.
package publisher
