// Package nats publishes owners' events on NATS core and JetStream, answers queries for
// lost events, and runs the embedded server.
//
//	conn, err := nats.Connect(ctx, nats.Options{URL: "nats://127.0.0.1:4222"})
//	feed, err := conn.NewFeed(owner, meta)
//	stream.AddSink(feed)
//	err = feed.Attach(src)
//	…
//	err = conn.Close() // closes the feeds first
//
// A [Conn] is one connection; a [Feed] is one owner's publisher on it, with a publisher id
// that is new at every start. Package publisher says what a feed guarantees. The subjects
// are in internal/kvevent.
//
// NATS core may lose any message. With Options.JetStream a stream of the server keeps
// events and announcements too. The feed publishes as before and waits for no
// acknowledgement: to make the stream is all that a publisher does.
//
// Queries: a range is answered at once, even between the chunks of a dump. Queries for a
// dump share one, which goes out at 100 MiB a second after the first 32 MiB, because the
// server hangs up on a client that cannot keep up. A dump is kept for ten seconds and
// brought up to date with later events, so routers that start together cost one snapshot.
// A feed holds one dump at most.
//
// Locks: nothing is taken under Conn.mu or Feed.mu but nats.go's own locks.
//
// Ownership: a Feed is closed by its owner or with its Conn. Close waits for every
// goroutine. An [Embedded] server is closed after its clients. Everything here may be used
// from any goroutine.
//
// Failure: the connection is made again for ever. Meanwhile events wait in the journals.
// Connect returns an error for options that cannot work, refused credentials, a node name
// that is taken, and a server with too small messages or without the JetStream asked for.
package nats
