// Package policy decides which blocks the tiers of a pool keep. It moves no bytes and
// knows no files: the block manager asks, and acts on the answer.
//
//	Evictor          which block is evicted when a slot is needed
//	FrequencyFilter  which blocks are worth writing to disk
//	WriteBudget      how many bytes of them in a day
//	Giver            which pool gives an extent when a tier's size is used up
//
// # Guarantees
//
//   - Adaptive is a LeafLRU while that serves best, and keeps what is asked for often when
//     scans and cycles come that are larger than the tier. Its memory is bounded by the
//     slots. A change takes O(log n).
//   - LeafLRU evicts an unused slot in the end, whatever its priority, and children
//     before their parents. A change takes O(log n).
//   - FrequencyFilter counts the stores and the hits of a block, in bounded memory.
//     A block takes O(1).
//   - WriteBudget grants no more than its bytes in any 24 hours.
//   - Giver takes from unused pools first. From a pool in use it takes only extents
//     beyond the pool's share. Pools in use never take from each other in turn.
//
// docs/block-manager.md has the ranks, the counts and what they cost.
//
// # Ownership and concurrency
//
// An Evictor belongs to one tier of one pool, whose mutex guards it. A
// FrequencyFilter and a WriteBudget are safe for concurrent use. Giver is a pure function.
//
// # Failure
//
// NewFrequencyFilter and NewWriteBudget refuse options out of range. Misuse panics: placing a slot of
// an unknown extent, adding an extent twice, or removing an extent whose slots are
// still in the order.
package policy
