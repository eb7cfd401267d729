// Package index answers how much of a prompt each worker already has, and in which
// tier. It holds, for every block, the owners that hold the block.
//
//	x, err := index.New(index.Options{})
//	err = x.SetMember(worker, pool, true) // Match reports this worker from now on
//	err = x.Apply(&event)                 // what an owner stored, removed or cleared
//	x.Match(&matches, locals, index.Continuation)
//
// A block is its local hash behind its parent, so one tree serves all owners. A
// store whose parent is unknown waits until the parent comes. A removed block that
// is stored again brings its descendants back, if their owner still holds them.
//
// SetGroups gives a worker of a hybrid model its KV groups. Match then reports the longest
// prefix that all groups can serve.
//
// Guarantees: membership is a set for each owner and tier, so that an event applied
// twice changes nothing. Replace, Cleared and RemoveOwner are one step for readers.
// Digest covers all blocks of an owner according to its events, stored here or lost.
// While Lost is not 0, a difference to the owner's own digest proves nothing:
// only the sum of lost blocks is known.
//
// Hashes are not verified when they come. When two blocks with one content in one
// place have different hashes, the chain of hashes decides which one is wrong. The
// wrong block leaves with its descendants.
//
// Concurrency: every method may be called from any goroutine. One lock orders
// changes. Match takes no lock and never waits. The answer for a worker is made of
// what the worker held at moments between call and return.
//
// Memory: Options.MaxBytes bounds the index. Over the bound the index evicts runs
// that no prompt has touched lately, from the ends of sequences. A Matches that is
// reused makes Match allocate nothing.
//
// Package runs is the memory behind the index. docs/router-index.md tells how the
// parts work together.
package index
