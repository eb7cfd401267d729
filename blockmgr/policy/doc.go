// Package policy decides what the tiers of a pool keep: which block is evicted when a
// slot is needed (Evictor), which blocks are written to disk (FrequencyFilter), and which
// pool gives an extent when a tier's size is used up (Giver). It moves no bytes and knows
// no files: the block manager asks it and acts.
//
// # Guarantees
//
//   - LeafLRU names the slot with the least rank, and of equal ranks the one with the
//     lowest reference. The rank is the tick of the last use, plus a number of ticks for
//     each level of priority: a slot that nobody uses goes in the end, whatever its
//     priority. Its tier places only blocks without children in it, so that children go
//     before their parents.
//   - FrequencyFilter counts a block's hits and its attempts alike: 1 at first, then twice
//     as many each time. Every count loses 1 each decay interval, and each time that more
//     blocks are known than the filter may know.
//   - Giver takes from unused pools before it takes from one in use. From a pool in use it
//     takes only what is beyond the pool's share. It never makes pools take from each
//     other in turn.
//
// # Cost
//
// LeafLRU takes O(log n) for a change and 4 bytes for each slot of its extents,
// plus 16 for each slot that is in it; neither holds a pointer, nothing is copied
// when it grows, and it allocates only when it holds more than ever before.
// FrequencyFilter takes O(1) for an attempt or a hit, however many blocks a decay
// makes it forget; what is forgotten is cleared away a little at each insertion,
// and takes at most half the memory of what is known. Its memory stays. Giver is
// linear in the pools.
//
// # Ownership and concurrency
//
// An Evictor belongs to one tier of one pool and is guarded by its mutex. A
// FrequencyFilter is safe for concurrent use. Giver is a pure function.
//
// # Failure
//
// There is none to handle but options out of range, which NewFrequencyFilter
// refuses. Placing a slot of an extent that was not added, adding an extent twice and
// removing one with slots in the order are mistakes of the caller and panic.
package policy
