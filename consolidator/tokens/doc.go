// Package tokens keeps the tokens of blocks for event formats that carry tokens.
//
// Router events carry hashes only. vLLM's format (publisher/zmqsink) repeats the
// tokens of each stored block, so a Table remembers them from the moment an engine
// announces the block, or a session names it.
//
//	t := tokens.New(256 << 20)
//	t.BlockTokens(hash, words, tokens.Identity{BlockSize: 16}) // the engine stored it
//	t.Retain(hash)                                             // a merged stream shows it
//	t.Describe(hash, &event)                                   // the sink encodes it
//	t.Release(hash)
//
// Guarantees: the tokens of a retained block stay until its last Release. Without
// references a block stays until its bytes are needed; the block released longest
// ago goes first. Retain may come before the tokens do.
//
// Bounds: blocks with tokens, and the names they share, use at most the bytes given
// to New. Blocks that are retained before their tokens come have a bound of their
// own, 4 Mi.
//
// Memory: entries and tokens lie in slabs of pointer-free cells. A table in a steady
// state allocates nothing.
//
// Concurrency: a Table is safe for concurrent use. Its lock is a leaf: it calls
// nobody while it holds the lock.
//
// Failure: tokens without room are refused and counted. The block then has no
// tokens, and Describe reports false. A Release without Retain panics.
package tokens
