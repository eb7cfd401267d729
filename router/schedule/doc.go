// Package schedule picks the worker for a request and keeps account of the
// requests that were sent out.
//
// A Scheduler is given what each worker has of a prompt (index.Match), adds
// what it knows of each worker's load, lets a Selector choose, and books the
// request on the chosen worker. Looking at the loads, choosing and booking
// happen under one lock, so that of two requests that arrive together the
// second sees the first.
//
// Two selectors exist. CostSelector takes the worker with the lowest expected
// cost: blocks left to compute, less credit for what is cached, plus blocks
// that are decoding. RoundRobin takes the workers in turn.
//
// Accounting: a request counts on its worker with its uncached prompt tokens
// until its prefill is marked complete, and with its prompt blocks until it is
// freed. A block that several requests of a worker share counts once. What a
// client forgets to free expires when nothing was heard of it for
// Options.Expiry. The number of requests and of blocks kept is bounded; beyond
// the bound a request is routed but not booked, and counted as such.
//
// Concurrency: a Scheduler is safe for concurrent use; a Selector is called by
// one goroutine at a time. Nothing here does I/O or starts a goroutine.
package schedule
