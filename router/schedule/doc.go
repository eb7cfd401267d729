// Package schedule chooses the worker for a request and books the request on the worker.
// Requests may wait while every worker is busy.
//
//	s, err := schedule.New(schedule.Options{Config: schedule.DefaultConfig()})
//	result, err := s.Schedule(ctx, &schedule.Request{
//		ID: "r1", Book: true, Tokens: 900, BlockSize: 16, TrackPrefill: true,
//		Members: matches.Members, Hits: matches.Hits,
//	})
//	err = s.MarkPrefillCompleted("r1") // at the first token
//	s.Free("r1")                       // at the end
//
// One lock covers eligibility, loads, choice and booking, so that of two requests
// that arrive together the second sees the first.
//
// Choice: CostSelector chooses the worker with the lowest cost. The cost is a formula in
// blocks, or a price in milliseconds from an Estimator (package price). Package modes
// has strategies that ignore caches. Other strategies implement Selector.
//
// Eligibility: a request may be pinned to a worker, limited to some workers, and require
// taints. Workers beyond the busy thresholds get no requests. Each reason for an empty
// choice has its own error.
//
// Waiting: with a queue a request waits while all its eligible workers have too much pending
// prefill. The goroutine that frees capacity decides for the waiting requests. A waiting
// caller costs a blocked call and no goroutine.
//
// A request beyond the bounds of the account is routed, not booked, and counted.
//
// Every method may be called from any goroutine. A Selector and an Estimator are called
// under the lock. The package does no I/O. A decision without a wait allocates nothing and
// takes time linear in the number of workers.
package schedule
