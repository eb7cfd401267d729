// Package modes chooses workers without looking at what they have cached: in turn, at
// random, by load, or as the request says.
//
//	s, err := schedule.New(schedule.Options{Selector: modes.NewPowerOfTwo(seed), …})
//
// The selectors implement schedule.Selector and schedule.CacheIgnorer. The scheduler has
// checked eligibility, busy thresholds, taints and allowed workers before it calls a
// selector, and books the choice after it.
//
// Load is the number of active requests that the scheduler has booked on a worker, and
// then the prompt tokens that the worker has to compute.
//
// A pinned request goes to its worker in every mode.
//
// Concurrency: a scheduler calls its selector under its lock. A selector belongs to one
// scheduler.
package modes
