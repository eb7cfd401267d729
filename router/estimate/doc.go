// Package estimate learns what engines take, and computes the price of a request on each worker. It is
// the Estimator of package schedule.
//
//	e, err := estimate.New(estimate.Options{})
//	e.SetWorker(worker, pool, "model")
//	e.Booked(&booking)   // a request was sent
//	e.PrefillDone("r1")  // its first token came
//	e.OutputBlock("r1")  // a block of its answer came
//	e.Dropped("r1")      // it has ended
//	e.Report(&load)      // an agent's load report
//
// Terms.Price has the formula. Nothing is configured: the seconds of prompts and of steps are fitted over
// the workers of a model, and a worker differs by a factor that its own last samples give. Copy and disk
// rates, queues and the requests of other routers come from load reports.
//
// A worker without samples has its model's terms. Before a model has samples Prices names the missing
// measure, and the scheduler decides by weights. docs/router-estimate.md tells how it learns.
//
// Every method may be called from any goroutine, and returns at once. MaxWorkers and
// MaxRequests bound the memory.
package estimate
