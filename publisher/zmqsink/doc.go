// Package zmqsink publishes one worker rank's blocks over ZMQ in vLLM's own event
// format, for consumers that know engines only: Dynamo's worker publisher, which
// subscribes to it as to an engine or to KVBM's consolidator, and indexers that
// connect by themselves.
//
// A Sink binds a PUB port, on which it sends three frames [topic, sequence number,
// payload] as vLLM does, and a ROUTER port, on which it answers requests for batches
// that were sent before: [identity, "", first number], answered by [identity, "",
// topic, number, payload] for each batch that is still held and [identity, "", "",
// ff×8, ""] at the end. One port speaks for one engine and one rank, and no batch
// names another: consumers lose a rank for good when one does.
//
// What is in the payload: a list of exactly three elements, with events as maps.
// Block hashes are SequenceHashes, as integers. The medium is GPU, CPU_TIER1 for
// host memory, CPU_TIER2 for disk, or EXTERNAL. The cache salt has a key of its own.
//
// Such events carry tokens, which router events do not; they come from a Tokens. A
// block whose tokens are not known there cannot be said. It is left out with
// everything that follows it in its sequence, and its removal is ignored; both are
// counted. It is said, in all its tiers, when its tokens have become known: within a
// quarter of a second if something was stored in it or behind it, else when its turn
// comes among all that are left, 32,768 in a second. Two million are kept for that.
//
// ZMQ tells no subscriber what it missed, and most consumers look at no sequence
// numbers. So the whole state is said again, behind an AllBlocksCleared, when
// somebody subscribes, when the queue overflowed, and when the source's state grew
// without events, but at most once in Options.ReannounceEvery. All subscribers get
// it; after the clear it says what they knew. It is said to a first subscriber even
// when there is nothing to say, because that one may have listened to an earlier
// process on this port, whose blocks nobody else would ever remove.
//
// In mode passthrough (New without a source, Sink.Raw) the engine's own payloads go
// out under the sink's numbers. Then nothing is known about the state: a payload
// that had to be dropped leaves a gap in the numbers, and a new subscriber gets what
// comes from there on, or asks for a replay.
//
// Publish and Raw never block: they copy into a bounded queue, from which one
// goroutine, the only user of the sockets, sends. Locks: stream lock, then the
// sink's; the sink's goroutine calls its source without any lock held. A Sink is
// closed by its owner; Close takes about a second at most.
//
// A subscriber that does not read has room for Options.HWM batches. A batch beyond
// them waits for it for a second. Then, if it is the only subscriber, nothing more is
// sent until it reads, and it gets the whole state. Otherwise the batch goes to the
// others. libzmq does not tell when a subscriber that missed a batch reads again: the
// state is said again after a second, two, four, and so on up to ten minutes, until
// nobody subscribes. In mode passthrough the numbers show what is missing. Batches that
// waited and batches that were missed are counted.
package zmqsink
