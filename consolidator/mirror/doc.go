// Package mirror keeps what one engine rank has cached, as the engine's events tell.
//
// A Cache translates engine events into changes of the rank's residency.Stream. An
// engine names blocks by hashes of its own; the Cache computes the SequenceHash of
// each block from its tokens, its adapter and its salt.
//
//	c := mirror.New(mirror.Config{Stream: s, BlockSize: 16, MaxBlocks: 8 << 20, Counters: &counters})
//	c.Apply(&batch)   // one transaction of the stream
//	c.Lost()          // batches are missing: forget every block
//	c.Listed(hashes)  // or keep the blocks on the engine's list
//
// Guarantees: the stream never claims a block that the events do not prove. Events that name
// no block of the main attention, or that cannot be placed, are dropped by reason.
// The stream is degraded while the mirror may differ from the engine.
//
// Copies. Two announcements of a block in one tier count twice: engines cache a block
// twice, and evict it twice, when two requests compute it at once. With
// Config.FullReports a run of blocks from the root does not count resident blocks
// again, because it may only repeat what was said before.
//
// Unknown parents. Blocks whose parent is unknown are parked, at most 16 MiB, and
// stored as soon as the parent is. Removals and clears reach parked blocks. The
// stream is degraded once something has waited for a second.
//
// KV groups. With Config.Groups the stream has the blocks of every group. A block of another
// group than the primary one is named by the primary group's block with the same engine hash,
// for which it waits. With Config.Learned the mirror learns the groups from the events, and is
// degraded while it does not know them all. Without either such events are dropped.
//
// Losses. Without a list of the engine's blocks, a loss forgets everything. With one
// (Listed), blocks on the list stay with one announcement each. Blocks that only the
// list names keep the stream degraded until the engine announces or removes them.
// Until the list comes, Hide keeps the blocks out of the stream.
//
// Cost: 25 bytes per block beside the stream's 38. No allocation per block or event.
// Adapters and salts of a rank have 64 MiB together.
//
// Concurrency: a Cache belongs to one goroutine, and is its stream's only writer.
// Counters may be read by any goroutine.
package mirror
