// Package zmqsink publishes one worker rank's blocks over ZMQ in vLLM's own event format.
// Its consumers know engines only: Dynamo's worker publisher, which subscribes to a sink
// as to an engine or to KVBM's consolidator, and Dynamo's indexer.
//
//	sink, err := zmqsink.New(zmqsink.Options{Bind: "tcp://*:6557", Worker: w, BlockSize: 16}, src, tokens)
//	merged.AddSink(sink)
//
// A [Sink] binds a PUB port for batches and a ROUTER port for replays. docs/formats.md
// describes both.
//
// Events of this format carry tokens, which router events do not have. A [Tokens] has
// them. A block whose tokens are unknown is left pending, with all blocks behind it. A
// pending block is announced in all its tiers once its tokens are known: a quarter of a
// second after a block behind it is stored, and otherwise when the sweep over pending
// blocks reaches it, 32,768 of them a second. At most two million blocks are pending.
//
// Guarantees: no block is announced without its parent, and no block is removed that was
// not announced. ZMQ tells no subscriber what it missed. So the sink announces the whole
// state again, behind an AllBlocksCleared: to every new subscriber, after the inbox lost
// events, after the state grew without events, and to a subscriber that was slow.
//
// A sink without a source is a passthrough: it sends the engine's own payloads, given to
// Raw, under the sink's numbers. A payload that was dropped leaves a gap in the numbers.
//
// Slow subscribers: a batch waits a second for room in a subscriber's queue. After that a
// single subscriber stalls the sink until it reads, and then gets the whole state. Among
// several subscribers the other ones get the batch, and the state is announced again after a
// second, two, four, and so on up to ten minutes.
//
// Locks: the stream's lock, then the inbox's. One goroutine uses the sockets, and calls
// source and tokens without a lock.
//
// Ownership: the creator of a Sink closes it. Close sends the queued batches, for at most
// about a second. Publish, Raw and StateJoined never block and may be called from any
// goroutine.
//
// Failure: every block, batch and payload that is not sent has a counter in [Stats].
package zmqsink
