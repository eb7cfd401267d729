// Package index knows which blocks lie where: for every block, the owners that
// hold it and in which tiers. It answers one question: how much of a prompt does
// each worker already have, and how near.
//
// Identity is content. A block is its local hash behind its parent, so one tree
// serves all workers and pools, and two owners that hold the same content are
// found on the same way. Two consequences are worth knowing. A store whose
// parent is not indexed is kept: it waits, out of the readers' sight, until the
// parent comes. And a block that was removed from the middle of a prefix and
// stored again brings its still-resident descendants back, because they were
// never gone; indexes that keep a tree per worker forget them.
//
// # Runs
//
// Blocks come in runs: a stored event has up to a hundred or more, evictions
// take a row from its end, a prompt is one row from the root. So the tree is made
// of runs of up to 128 consecutive blocks, and work is done per run. A run's
// local hashes lie side by side and are compared with a prompt as memory. Who
// holds it is one word per owner and tier: the first and the last block held. A
// run is never split; another continues it at its end or anywhere in its middle.
// The runs behind a block are found in one hash table of the whole index, by
// block and first local hash.
//
// The block that an event names is looked for next to the one that the same owner
// named last, then in a directory of the places where events ended, then by
// searching. When the searches cost more than it would to have every block in
// the directory, every block is, until that is no longer so. Streams made of runs
// therefore pay nothing per block for being found, and any other stream pays
// what a hash table costs.
//
// # Guarantees
//
// Membership is a set per (owner, tier), so applying an event twice changes
// nothing. Match reports the known workers that have a hit, ordered by worker.
// Replace, Cleared and RemoveOwner are one step for readers, who see the old
// blocks of the owner or the new ones and never a mixture. Digest is exact after
// every applied event, for it counts what the owner was told to hold, whether
// there was room for it or not.
//
// One thing the digest cannot do: of what was lost for lack of room only the sum
// is kept. A block that is lost and stored again without having been removed is
// counted twice, and the removal of one that was never stored is taken from what
// was lost. While Lost is not 0, a difference to the owner's own digest therefore
// proves nothing.
//
// Hashes are believed as they come. When two blocks with the same content in the
// same place have different hashes, the chain of hashes decides which is wrong,
// and the wrong one leaves with all that follows it.
//
// # Concurrency
//
// Everything is safe for concurrent use. Changes are made one after the other,
// under a lock that readers never take. Readers walk over words that are loaded
// and stored atomically, and over blocks that do not change while anybody can
// reach them: what is taken out of the tree is used again only when all readers
// that might still be in it are gone. The answer for a worker is made of what it
// held at moments between the call and its return.
//
// What a change leaves to be done, such as the entries of an owner that is gone,
// blocks that nobody holds, and a directory of every block, is done bit by bit by
// the changes after it. What grows at once is the child table and the directory:
// growing one makes that change wait for some ten nanoseconds per entry.
//
// # Memory
//
// The tables hold no pointers per block, and the garbage collector does not look
// into them. Options.MaxBytes bounds them all: over it, runs that no prompt has
// touched lately leave, the ends of sequences first, from all who hold them. New
// blocks are refused only while there is nothing to evict or readers still hold
// what was evicted. A Matches is reused from call to call, and then Match
// allocates nothing.
package index
