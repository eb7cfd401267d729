// Package registry says, for every block of a pool, in which tiers it is, in
// which slot, and which block it continues.
//
// It is made for 10 to 20 million blocks. Entries and index contain no pointers,
// so that the collector walks one list of chunks, each of thousands of blocks,
// and nothing else. And no operation does work that grows with the number of
// blocks, apart from the copies of small tables named below.
//
// # Structure
//
//	fingerprint(key) ─top bits─► directory ─► segment ─► word{fingerprint, id}
//	                                                       └─► Entry id
//
// Entries lie in chunks of fixed size and never move: an ID is a position among
// them, free ones are linked to one another and used again, last freed first.
//
// The index is an extendible hash table. A segment holds up to 768 words, found
// by linear probing from a home that the fingerprint names. A segment that is
// full is split in two by the next bit of the fingerprint; the others are not
// touched. The fingerprint is all that a split or a removal needs, so that
// neither reads entries. Removals shift the words behind back and leave no
// tombstones.
//
// Fingerprints come from a hash with a random seed per registry. Keys are
// derived from prompts, and whoever writes prompts could otherwise look for keys
// that fall into one segment. Should segments fill unevenly all the same, the
// directory stays in proportion to the segments, and a segment that may not be
// split is continued in another one.
//
// # Guarantees
//
//   - The pointer from At is valid, and names the same block, as long as the
//     entry exists: as long as its block has a slot or is the parent of one that
//     has.
//   - Entry.Kids and Entry.Refs are exact after every operation.
//   - Occupy makes a chunk of 88 KiB or of 64 KiB now and then, and splits a
//     segment, hardly ever two; Vacate and the look-ups allocate nothing. What
//     grows by copying is the directory and a word per segment (256 KiB each at
//     20 million blocks), and the lists of chunks.
//
// A large registry takes 55 to 66 bytes per entry, ghosts included. It keeps the
// memory of the most entries that it ever had: freed entries and words are used
// again, segments are never merged.
//
// # Ownership and concurrency
//
// A registry belongs to a pool, and the pool's mutex guards it with everything
// that At returned: nothing here is safe for concurrent use, not even look-ups
// beside Occupy or Vacate. It starts no goroutine and does no I/O.
//
// # Failure
//
// There is none that a caller could cause from outside: misuse that would lose
// track of a slot (a second slot of a block in one tier, a slot given back
// twice) panics.
package registry
