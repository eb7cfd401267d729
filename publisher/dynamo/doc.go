// Package dynamo publishes the blocks that a node's workers can reach to routers of NVIDIA Dynamo
// 1.6, without a Dynamo process on the node. It writes their event plane (NATS) and their
// discovery records (the file backend), and answers their recovery queries (the TCP
// request plane).
//
//	plane, err := dynamo.Open(ctx, dynamo.Options{Namespace: "dynamo", …}, conn)
//	source, err := plane.NewSource(worker, merged)
//	merged.AddSink(source)
//	…
//	err = plane.Close() // before conn
//
// A [Plane] is one Dynamo endpoint: a namespace, a component and an endpoint name. A
// [Source] is one worker rank on it, with a publisher id that is new at every start. The
// worker's own KV event publisher must be off, because routers ignore a rank with two
// sources. docs/formats.md describes what a router sees and which files a plane writes.
//
// Guarantees: a source numbers its own events from 1. Routers hear of every loss by a hole
// in these numbers. When events could not be sent, a source sends a cleared event and then
// its whole state, at 100 MiB a second after the first 32 MiB. So no router keeps a block
// that may be wrong, and none has to ask. A source is recoverable when its routers can ask
// for lost events, else live-only; then it states everything again about once a minute.
//
// Security: what comes in over TCP is hostile until it is decoded. Connections, frames,
// requests and times are bounded. An answer goes to the address that the request names.
// That address must be the requester's, or both must be this machine's, unless
// Options.AnyDialBack is set: else a stranger could make this process connect anywhere.
//
// Locks: Source.sendMu (held while events are numbered and sent), then the stream's
// locks, then the source's inbox. Publish takes the inbox's alone and never blocks.
//
// Ownership: the creator of a Plane closes it, before its connection. Close closes the
// sources, removes the records and waits for every goroutine.
//
// Failure: every loss has a counter in [SourceStats] or [PlaneStats]. After a crash the
// records live for up to ten seconds more, in which the routers ignore the rank.
package dynamo
