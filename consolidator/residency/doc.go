// Package residency keeps which blocks an owner holds in which tiers, and publishes the
// changes as one stream of router events.
//
// A Stream holds the blocks of one owner: a worker rank or a pool. Several requests may
// store the same block, so a block has a count of references in each tier. A Merged is
// the stream of all blocks that a worker rank can reach: its own and those of its pool.
//
//	s := residency.NewStream(kv.PoolOwner(id), sink)
//	s.Store(kv.TierHost, parent, true, position, blocks)
//	s.Flush() // the sink gets one event
//
// A block of another KV group than the primary one (Stream.StoreGroup) has no place of its own: it is
// named by the primary group's block at which it ends.
//
// Stream.Update changes a stream in a transaction: the function gets a Tx and makes
// any number of changes under one lock.
//
// Guarantees, at any moment and to any observer:
//
//   - Event ids run from 1 without holes, in the order in which sinks see them.
//   - A block is stored once per tier, and removed with its last reference there.
//   - Status and Snapshot are consistent: their digest and blocks are those after the
//     event id that they return. No observer sees half a transaction.
//   - No change waits for a consumer. A snapshot reads a view of the table; a change
//     first copies the chunk of 512 blocks that it modifies. A Merged follows its pool
//     in its own goroutine, through a bounded queue. If that queue overflows, the Merged
//     compares its blocks with the pool's, 512 at a time.
//
// Cost: 38 bytes a block, without pointers; no allocation per block or event.
//
// Concurrency: everything is safe for concurrent use. Sinks are called under the
// stream's lock: a sink must neither block nor call the stream. Lock order: own
// stream, Merged, sink. A Merged never holds its own lock and the pool's together.
//
// Failure: a full table (64 Mi blocks) drops stores and counts them. References beyond
// the packed counts are kept in a map beside the table.
package residency
