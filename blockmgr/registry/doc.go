// Package registry knows, for every block of a pool, its slot in each tier and its parent
// block.
//
// The registry is made for 10 to 20 million blocks. Entries and index contain no pointers.
// docs/block-manager.md draws the hash table.
//
// # Guarantees
//
//   - The pointer from At is valid, and names the same block, as long as the entry exists:
//     as long as its block has a slot or is the parent of a block with one.
//   - Entry.Children and Entry.Refs are exact after every operation.
//   - No operation does work that grows with the number of blocks, except for copies of small
//     tables. Vacate and the look-ups allocate nothing.
//   - A large registry takes 55 to 66 bytes per entry. It keeps the memory of the most entries
//     that it ever had.
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
