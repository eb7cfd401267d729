// Package front measures what a front door adds to a request: to its first byte, to each
// chunk of its stream, in processor time and in memory.
//
//	err := front.Run(ctx, front.Options{Programs: programs, Stub: command, PeerBin: dir, Out: os.Stdout})
//
// Worker servers are stubs (Serve), processes of their own: they speak vLLM's HTTP, wait a
// fixed time before the first chunk and between chunks, keep a cache of blocks and publish
// its events over ZMQ. Each chunk carries when the request arrived at the stub and when the
// chunk was sent. All processes of a machine share one monotonic clock. Therefore
//
//	added to the first byte = (received - request sent) - (first chunk sent - request arrived)
//	added to a chunk        = received - sent
//
// The way without a router has these times too; its row is the floor of the others.
//
// The router under test has one core of its own. Load generator and stubs share another
// one. Routers take turns, each started anew with new stubs, under the same load: requests
// leave at a fixed rate, whether earlier ones are answered or not.
//
// Run owns its processes and directories and is for one goroutine. A row whose router was
// not exact although it should be says so. docs/benchmarks.md has figures.
package front
