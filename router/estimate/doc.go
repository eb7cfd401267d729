// Package estimate tells how long a worker would take to the first token of a
// request, from what was measured on it. It is the Estimator of package schedule's
// cost mode.
//
//	ms = queue + load + recompute
//
//	queue     = prompt tokens of other requests still to compute / prefill rate
//	            + their number * what every request costs besides its tokens
//	load      = (host + disk hits) * block bytes / copy rate
//	            + (disk hits + blocks queued at the disk) * block bytes / disk rate
//	recompute = prompt tokens that no tier has / prefill rate
//	            + what every request costs besides its tokens
//
// The queue is what this package follows itself: the requests that it was told of,
// without what a tier has of their prompts and what was computed meanwhile, and without
// those that still wait for blocks when the request at hand has none to wait for. To
// that come the requests of others that the engine has waiting, and what is on the
// scheduler's account beyond what is followed.
//
// Nothing is configured and nothing is guessed. What is learned:
//
//   - the prefill rate of a worker, tokens per second, from requests: Booked when one
//     is sent to it, PrefillDone when its first token came. Time during which several
//     prefills are pending counts once, time during which none is not at all, and a
//     request that has yet to wait for its blocks is not pending; so neither the queue
//     nor the load is taken for slow computing.
//   - what every request costs besides its tokens, from those that have next to none to
//     compute. The rate is that of the rest of the time, so that mostly cached traffic
//     is not taken for slow computing either; 0 until it is known.
//   - the copy rate of a worker and the disk rate of a pool, bytes per second of busy
//     time, and the size of a block, from load reports. What no machine can do is not
//     taken, and no report counts for more than about a quarter of all.
//
// Each rate is the mean over the last 16 samples, recent ones counting for more, without
// those that are far off the median. A rate holds from MinSamples samples on and until
// MaxAge after the last one. Otherwise the median of the workers of the same model that
// have one stands in, at once: a worker that has just joined would get no requests, and
// so no rate, if everybody waited for it. Measures shows which is which.
//
// When there is not even that, FirstTokens says what is missing, and the decision is
// made by weights. Blocks of the external tier and of a shared cache count as to be
// computed, because nobody measures their way; when they come, nothing is learned from
// it.
//
// Concurrency: an Estimator is safe for concurrent use; every call is short. A
// decision asks once and finds what it needs of each member in one place. Memory is
// bounded: by MaxWorkers, which are forgotten when they go, and by MaxRequests.
package estimate
