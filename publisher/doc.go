// Package publisher has the parts that all publishers of an owner's event stream share.
//
// Two publishers keep the stream's event ids: publisher/nats and publisher/httpfeed. Both
// embed a [Feed], which has the journal, the numbering of messages, ranges, dumps,
// announcements and counters, and give it a [Transport]:
//
//	feed := publisher.NewFeed(publisher.FeedOptions{ID: id, Owner: owner, …, Transport: t})
//	stream.AddSink(feed)     // Publish and HealthChanged
//	err := feed.Attach(src)  // announcements begin
//
// Two publishers number the events anew, in the format of another project:
// publisher/zmqsink and publisher/dynamo. Both take events from an [Inbox], and restate their
// whole state when the inbox lost events.
//
// Guarantees of a feed:
//
//   - Publish never blocks, because its caller holds the stream's lock. It copies events
//     into the journal, the last 4,096 events and at most 256 Ki blocks. One goroutine
//     sends them from there. Events that leave the journal unsent are counted.
//   - Event ids are contiguous. An announcement follows the events that it counts, once a
//     second, at every change of health, and when a consumer may have missed one. So a
//     consumer finds every loss, and queries for the events. No event is sent twice.
//   - A query is answered with events of the journal, or with a dump of the whole state.
//   - Close announces that the owner is gone.
//
// Locks: the stream's lock, then a feed's or an inbox's. A feed calls its source and its
// transport without a lock, and the source may call Publish from within Status.
//
// Ownership: the creator of a feed closes it; Close waits for the feed's goroutines. A
// [Journal], [Dump], [Budget] or [Pace] belongs to one goroutine or to its owner's lock.
// Everything else may be used from any goroutine.
//
// Failure: a message that a transport could not send is lost and counted. docs/events.md
// describes the messages and what consumers do.
package publisher
