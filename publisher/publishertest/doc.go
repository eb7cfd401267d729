// Package publishertest has a double of an event stream, for tests of publishers.
//
//	src := publishertest.NewSource()
//	src.Sink = feed // what the stream hands its events to
//	err := feed.Attach(src)
//	src.Store(1, 3) // one event with the blocks 1 to 3
//
// A [Source] behaves as a stream of package consolidator does: it calls its sink under its
// own lock. It may be used from any goroutine. Tests own it; nothing has to be closed.
package publishertest
