// Package proto is the connector protocol: how an inference engine and the node
// agent talk about blocks. docs/protocol.md describes the protocol for connectors in
// any language.
//
//   - frame.go and codec.go: frames, their bodies and packed lists
//   - messages.go, fit.go and validate.go: each body and its ranges
//   - conn.go: the connection, one Unix SEQPACKET socket
//   - client.go, scheduler.go, worker.go, lister.go and extents.go: a Go client
//
// A frame is a 16-byte header and a msgpack map, together at most MaxFrame bytes.
// Block bytes never travel: the agent sends one file descriptor per extent beside
// EXTENT_READY, and both sides map the same memory.
//
// A scheduler's connection:
//
//	c, err := proto.DialScheduler(ctx, proto.ClientOptions{Socket: path, Hello: hello})
//	err = c.Open(request, "", "", "", tokens)
//	found, err := c.Lookup(ctx, request, 0, blocks, wait) // found.Slots are pinned
//	granted, err := c.Store(ctx, request, found.Ready, rest)
//	err = c.Commit(ctx, request, slots)                   // the granted slots are filled
//	err = c.CloseRequest(request)
//
// Ownership: pins last until RELEASE, CLOSE, the request's next OPEN or the end of
// the session. Grants last until COMMIT, ABORT, CLOSE or the end of the session. An
// engine must have no copy in flight to or from a slot that it gives back. When the
// agent dies the engine keeps both, and names them to the next agent with RESUME.
//
// Failure: Decode checks every list, string and nesting against its limit, so a
// decoded message is inside its ranges. A malformed message ends its connection
// after an ERROR. A refused frame does not. A peer that does not read loses its own
// connection and delays nobody else.
//
// Conn.Send may be called from several goroutines, Conn.Receive from one.
package proto
