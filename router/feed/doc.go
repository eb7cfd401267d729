// Package feed keeps what a router believes of each publisher true.
//
// A Set follows every publisher that announces itself: events are applied to the index
// in the order of their ids, without holes. Set.Frame takes in a message, Set.Answered
// an answer, and Set.Tick what is due with time. Each returns the queries to send now:
//
//	for _, q := range set.Frame(frame, time.Now()) {
//		answer, err := transport.Query(ctx, q.Publisher, q.Request)
//		more := set.Answered(&q, answer, err, time.Now())
//		...
//	}
//
// Guarantees: the index holds what a publisher announced up to the feed's cursor, or the
// feed's State says otherwise. A gap in the ids is asked for and repaired. A digest that
// differs with nothing missing leads to a dump that replaces what the owner held. An
// owner is forgotten when its publisher says goodbye, falls silent or is followed by
// another publisher, but not while its source is disconnected.
//
// The Set tells each Model a View: how many workers there are and the Quality of a
// decision. A Keeper saves the feeds as a snapshot and begins with the stored one.
//
// A Set does no I/O and reads no clock. It may be used from any goroutine; queries are
// bounded in number and in the bytes of their answers.
package feed
