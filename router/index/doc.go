// Package index knows which blocks lie where: for every block, the owners that
// hold it and in which tiers. It answers one question: how much of a prompt
// does each worker already have, and how near.
//
// Identity is content. A block is named by its SequenceHash, which covers its
// tokens and its whole prefix, so one table serves all workers and pools, and
// two owners that hold the same content are found by the same lookup. Two
// consequences are worth knowing. A store whose parent is not indexed is kept,
// because its hash already says what it is. And a block that was removed from
// the middle of a prefix and stored again brings its still-resident
// descendants back, because they were never gone; indexes that keep a tree per
// worker forget them.
//
// Guarantees: membership is a set per (owner, tier), so applying an event
// twice changes nothing; Match reports every known worker, those without a hit
// included, ordered by worker; Replace is atomic for readers, who see the old
// blocks of the owner or the new ones and never a mixture; Digest is exact
// after every applied event.
//
// Concurrency: everything is safe for concurrent use. Readers hold a shared
// lock for one walk over the prompt; writers take the exclusive lock for at
// most writeBatch blocks at a time, so that no reader waits for a large event,
// a dump or the removal of a worker.
//
// Memory: the table holds no pointers per block (the garbage collector does
// not look into it) and its size is bounded by Options. When it is full,
// stores fail with ErrFull and are counted; nothing else is affected. A Matches
// is reused from call to call, and then Match allocates nothing.
package index
