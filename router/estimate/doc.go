// Package estimate predicts how long a worker takes to the first token of a request,
// from the worker's measured rates. It is the Estimator of package schedule's cost
// mode.
//
//	e, err := estimate.New(estimate.Options{})
//	e.SetWorker(worker, pool, "model")
//	e.Booked(&booking)   // a request was sent
//	e.PrefillDone("r1")  // its first token came
//	e.Report(&load)      // an agent's load report
//
// The prediction is
//
//	ms = queue + load + recompute
//
//	queue     = tokens of other requests to compute / prefill rate
//	            + their number * fixed cost of a request
//	load      = (host + disk hits) * block bytes / copy rate
//	            + (disk hits + blocks queued at the disk) * block bytes / disk rate
//	recompute = prompt tokens that no tier has / prefill rate
//	            + fixed cost of a request
//
// The queue has the requests that were booked here, less the tokens computed since.
// It also has the requests from elsewhere that the engine reports as waiting.
//
// Nothing is configured: every rate is learned. A worker without a rate gets the
// median of its model's workers. Without a median FirstTokens names the missing
// measure, and the scheduler decides by weights. docs/router-estimate.md tells how
// rates are learned.
//
// Every method may be called from any goroutine, and returns at once. MaxWorkers and
// MaxRequests bound the memory.
package estimate
