// Package residency keeps which blocks an owner holds in which tiers, and tells it
// as one stream of router events.
//
// A Stream is the truth about one owner: a worker rank or a pool. Several holders
// may announce one block, so blocks are counted by reference in each tier. A Merged
// is what one worker rank can reach: its own blocks and those of its pool.
//
//	s := residency.NewStream(kv.PoolOwner(id), sink)
//	s.Store(kv.TierHost, parent, true, position, blocks)
//	s.Flush() // the sink gets one event
//
// Stream.Update changes a stream in a transaction: the function gets a Tx and makes
// any number of changes under one lock.
//
// Guarantees, at any moment and to any observer:
//
//   - Event ids run from 1 without holes, in the order in which sinks see them.
//   - A block is stored once per tier, and removed with its last reference there.
//   - Status and Snapshot belong together: digest and blocks are those after the
//     event id that comes with them. No observer sees half a transaction.
//   - No change waits for a consumer. A snapshot reads a view of the table; the
//     change copies the chunk of 512 blocks that it touches. A Merged follows its pool
//     from its own goroutine, through a bounded queue, and compares itself with the
//     pool in pieces of 512 blocks after it fell behind.
//
// Cost: 38 bytes a block, without pointers; no allocation per block or event.
//
// Concurrency: everything is safe for concurrent use. Sinks are called under the
// stream's lock: a sink must neither block nor call the stream. Lock order: own
// stream, Merged, sink. A Merged never holds its own lock and the pool's together.
//
// Failure: a full table (64 Mi blocks) drops stores, counted. References beyond the
// packed counts are kept beside the table.
package residency
