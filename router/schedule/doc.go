// Package schedule picks the worker for a request and keeps account of the
// requests that were sent out.
//
// A Scheduler is given what each worker has of a prompt (index.Match), adds
// what it knows of each worker's load, lets a Selector choose, and books the
// request on the chosen worker. Looking at the loads, choosing and booking
// happen under one lock, so that of two requests that arrive together the
// second sees the first.
//
// CostSelector takes the worker with the lowest cost, which is one of three
// things: today's formula (blocks left to compute, less credit for what is
// cached, plus blocks that decode), the older one with one overlap weight, or
// the expected milliseconds to the first token, for which an Estimator knows
// what each tier and each worker was measured to do. RoundRobin takes the
// workers in turn. Anything else can implement Selector.
//
// Who may be chosen: a request may be pinned to a worker, limited to some, and
// demand taints; workers that are beyond the busy thresholds are passed over.
// Each reason for there being nobody has its own error. With a queue a request
// waits while every worker that it may go to has too much prefill pending, and
// is looked at again whenever a prefill or a request ends, a worker or the
// configuration changes, and at each Tick. Waiting costs the caller a blocked
// call and nothing else: the goroutine that frees capacity chooses for those
// that wait.
//
// Accounting is package load's: a request counts on its worker with its
// uncached prompt tokens until its prefill is marked complete, and with its
// prompt blocks until it is freed. Beyond the bounds of the account a request
// is routed but not booked, and counted as such.
//
// Concurrency: a Scheduler is safe for concurrent use; a Selector and an
// Estimator are called under its lock, by one goroutine at a time. Nothing here
// does I/O or starts a goroutine. A decision that need not wait allocates
// nothing, and takes time in proportion to the number of workers.
package schedule
