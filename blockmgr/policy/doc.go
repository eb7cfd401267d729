// Package policy decides which blocks the tiers of a pool keep. It moves no bytes and
// knows no files: the block manager asks, and acts on the answer.
//
//	Evictor          which block is evicted when a slot is needed
//	FrequencyFilter  which blocks are worth writing to disk
//	Giver            which pool gives an extent when a tier's size is used up
//
// # Guarantees
//
//   - LeafLRU names the slot with the lowest rank, and among equal ranks the slot
//     with the lowest reference. The rank is the tick of the last use, plus a
//     number of ticks for each level of priority. So an unused slot is evicted in
//     the end, whatever its priority. A tier places only blocks without children,
//     so that children are evicted before their parents.
//   - FrequencyFilter counts the stores and the hits of a block. The count is 1 at
//     first and doubles each time. Every count loses 1 in each decay interval, and
//     whenever the filter knows more blocks than its bound.
//   - Giver takes from unused pools first. From a pool in use it takes only extents
//     beyond the pool's share. Pools in use never take from each other in turn.
//
// # Cost
//
// LeafLRU takes O(log n) for a change. It uses 4 bytes for each slot of its extents
// and 16 for each slot in the order, without pointers. It copies nothing when it
// grows, and allocates only when it holds more than ever before.
//
// FrequencyFilter takes O(1) for each block. Entries of forgotten blocks are
// cleared a few at each insertion, and take at most half the memory of the known
// blocks. The filter keeps its memory. Giver is linear in the pools.
//
// # Ownership and concurrency
//
// An Evictor belongs to one tier of one pool, whose mutex guards it. A
// FrequencyFilter is safe for concurrent use. Giver is a pure function.
//
// # Failure
//
// NewFrequencyFilter refuses options out of range. Misuse panics: placing a slot of
// an unknown extent, adding an extent twice, or removing an extent whose slots are
// still in the order.
package policy
