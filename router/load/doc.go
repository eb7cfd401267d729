// Package load keeps account of the requests that run on each worker.
//
// A request counts on its worker in three ways. Its uncached prompt tokens
// count as prefill until the prefill is marked complete; with a modelled
// duration they run down by themselves. Its prompt blocks count as active until
// it is freed; a block that several requests of a worker share counts once. The
// blocks it generates count too, each with the weight that the caller gives.
//
// Prompts live in one compressed trie for all workers. A node is a run of
// blocks with the number of requests per worker that go through it, so booking
// a prompt of hundreds of blocks touches as many nodes as it has branches, and
// what every worker shares with a prompt (Shared) is found by one walk, whose
// cost is that of its answer. Blocks count by prefix: the same block after
// another beginning is another block.
//
// What the client forgets to free expires when nothing was heard of it for
// Options.Expiry; long requests that show signs of life stay. Memory is bounded
// by Options.MaxRequests and Options.MaxBlocks: 20 bytes for the hash and the
// count of a booked block, and some hundreds for each request and each run,
// which has one block at least.
//
// Columns gives the loads as arrays that follow a list of members. They are
// kept up to date by each change, so reading them costs nothing but the workers
// whose prefill is modelled.
//
// An Account has no lock: whoever has one serializes its calls. It does no I/O,
// starts no goroutine and asks nothing but Options.Now for the time.
package load
