// Package policy decides what the tiers of a pool keep: which block goes when a
// slot is needed (Evictor), which blocks are worth a place on disk
// (FrequencyFilter), and which pool gives an extent up when a tier's size is used
// up (Giver). It moves no bytes and knows no files; the block manager asks it and
// acts.
//
// # Guarantees
//
//   - LeafLRU names the slot that was placed with the least rank, among those the
//     one with the lowest reference. The rank is the tick of the last use, plus a
//     number of ticks for each level of priority: a slot that nobody uses goes in
//     the end, whatever its priority. It orders what it is given; children go before their parents
//     because its pool places only blocks without children in the tier.
//   - FrequencyFilter counts a block's hits and its attempts alike: 1 at first,
//     then twice as many each time. Every count loses 1 each decay interval, and
//     each time that more blocks are known than the filter may know.
//   - Giver takes from unused pools before it takes from one in use; takes from
//     one in use only what it has beyond its share; and never makes two or more
//     pools take from each other in turn.
//
// # Cost
//
// LeafLRU takes O(log n) for a change and 4 bytes for each slot of its parts,
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
// refuses. Placing a slot of a part that was not added, adding a part twice and
// removing one with slots in the order are mistakes of the caller and panic.
package policy
