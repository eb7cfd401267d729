// Package registry knows, for every block of a pool, its slot in each tier and its parent
// block.
//
// It is made for 10 to 20 million blocks. Entries and index contain no pointers, so that
// the garbage collector walks one list of chunks, each of thousands of blocks. No operation
// does work that grows with the number of blocks, except for the copies of small tables
// named below.
//
// # Structure
//
//	fingerprint(key) ─top bits─► directory ─► segment ─► word{fingerprint, id}
//	                                                       └─► Entry id
//
// Entries lie in chunks of fixed size and never move. An ID is an entry's position. Free
// entries are linked to one another and used again, last freed first.
//
// The index is an extendible hash table. A segment holds up to 768 words, found
// by linear probing from a home that the fingerprint names. A segment that is
// full is split in two by the next bit of the fingerprint; the others are not
// touched. Splits and removals need only fingerprints and read no entries. A removal
// shifts the later words back and leaves no tombstone.
//
// Fingerprints come from a hash with a random seed per registry. Keys are derived from
// prompts, and without the seed a client could look for keys that fall into one segment.
// If segments fill unevenly all the same, the directory stays in proportion to the
// segments, and a segment that may not be split is continued in another one.
//
// # Guarantees
//
//   - The pointer from At is valid, and names the same block, as long as the entry exists:
//     as long as its block has a slot or is the parent of a block with one.
//   - Entry.Children and Entry.Refs are exact after every operation.
//   - Occupy allocates a chunk of 88 KiB or of 64 KiB now and then, and splits a segment,
//     hardly ever two. Vacate and the look-ups allocate nothing. The directory, a word per
//     segment (256 KiB each at 20 million blocks) and the lists of chunks grow by copying.
//
// A large registry takes 55 to 66 bytes per entry, with the ghosts. It keeps the memory
// of the most entries that it ever had.
//
// # Ownership and concurrency
//
// A registry belongs to a pool. The pool's mutex guards it and everything that At
// returned: not even look-ups may run beside Occupy or Vacate. It starts no goroutine and
// does no I/O.
//
// # Failure
//
// No input from outside can make it fail. Misuse that would lose track of a slot panics: a
// second slot of a block in one tier, a slot given back twice.
package registry
