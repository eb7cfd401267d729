// Package runs is the memory of the index: blocks in runs, who holds them, and
// which run follows which block.
//
// A run is a row of up to MaxBlocks consecutive blocks. The local hashes of a run
// lie side by side, so that a reader compares them with a prompt as memory. A run
// is never split: another run continues it at its end or in its middle.
//
//   - Arena hands out memory for the blocks of runs.
//   - Table holds the runs themselves: a Head for readers, a WriterState for the writer,
//     and the entries that say who holds which blocks.
//   - Tree is Table and Arena with the hash table of children: block and first
//     local hash lead to the run that follows.
//   - Directory finds a block by its sequence hash. It is for the writer only.
//   - UnknownParents has the parents that runs wait for. It is for the writer only.
//   - Readers counts readers, so that the writer knows when memory can be reused.
//   - Mask is a set of positions of one run.
//
// Concurrency: one writer at a time. Readers take no lock. They load heads, entries
// and child slots atomically, and blocks do not change while a reader can reach
// them. The caller frees a run or a piece of memory only when no reader can reach
// it any more; package index waits for its readers.
//
// Memory: nothing here holds a pointer per block, so the garbage collector does
// not scan blocks. Every type that grows asks a mayGrow function first.
package runs
