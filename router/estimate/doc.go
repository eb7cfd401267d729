// Package estimate tells how long a worker would take to the first token of a
// request, from what was measured on it. It is the Estimator of package schedule's
// cost mode.
//
//	ms = queue + load + recompute
//
//	queue     = prompt tokens of other requests still to compute / prefill rate
//	load      = (host + disk hits) * block bytes / copy rate
//	            + (disk hits + blocks queued at the disk) * block bytes / disk rate
//	recompute = prompt tokens that no tier has / prefill rate
//
// Nothing is configured and nothing is guessed. Three rates are learned:
//
//   - the prefill rate of a worker, tokens per second, from requests: Booked when one
//     is sent to it, PrefillDone when its first token came. Time during which several
//     prefills are pending counts once, time during which none is not at all, and a
//     request that has yet to wait for its blocks is not pending; so neither the queue
//     nor the load is taken for slow computing.
//   - the copy rate of a worker and the disk rate of a pool, bytes per second of busy
//     time, and the size of a block, from load reports.
//
// Each is the mean over the last 16 samples, recent ones counting for more, without
// those that are far off the median. A rate holds from MinSamples samples on and until
// MaxAge after the last one. Otherwise the median of the workers of the same model that
// have one stands in, at once: a worker that has just joined would get no requests, and
// so no rate, if everybody waited for it. Measures shows which is which.
//
// When there is not even that, FirstToken says what is missing, and the decision is
// made by weights. So it is for blocks of the external tier, whose way nobody measures.
// Blocks of a shared cache count as to be computed, for the same reason.
//
// Concurrency: an Estimator is safe for concurrent use; every call is short. Memory is
// bounded: by MaxWorkers, which are forgotten when they go, and by MaxRequests.
package estimate
