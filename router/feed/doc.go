// Package feed keeps the router's index equal to the blocks of every publisher.
//
// A Set follows every publisher that announces itself. It applies the publisher's events to
// the index in the order of their ids, without gaps. Set.Frame handles a message,
// Set.Answered an answer, and Set.Tick the passing of time. Each returns the queries to send
// now:
//
//	for _, q := range set.Frame(frame, time.Now()) {
//		answer, err := transport.Query(ctx, q.Publisher, q.Request)
//		more := set.Answered(&q, answer, err, time.Now())
//		...
//	}
//
// Guarantees: the index has the blocks that a publisher announced up to the feed's cursor,
// or the feed's State says otherwise. The feed queries for the events of a gap. A digest
// that differs without a missing event leads to a dump, which replaces the owner's blocks.
// An owner is forgotten when its publisher says goodbye, falls silent or is replaced by
// another publisher, but never while the source is disconnected.
//
// The Set passes each Model a View: the number of workers and the Quality of a decision. A
// Keeper saves the feeds as a snapshot and restores the stored one at the start.
//
// A Set does no I/O and reads no clock. It may be used from any goroutine. Queries are
// bounded in number and in the bytes of their answers.
package feed
