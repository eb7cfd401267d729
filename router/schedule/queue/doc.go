// Package queue keeps the requests that wait for a worker, and says which one goes next.
//
//	q, err := queue.New(queue.Options{Class: queue.Class{ThresholdTokens: &tokens, Discipline: queue.WSPT}})
//	if q.Waits(item, busy) { // all its workers are busy, or others wait for them
//		err = q.Push(item)
//	}
//	q.Released(worker, taints) // its load has dropped
//	item = q.Next(busy)
//	q.Take(item)               // or q.Hold(item, worker), to wait for a better worker
//
// Order: by class with deficit round robin, then by strict priority, then by the discipline of the class: first or
// last come, shortest uncached prompt, earliest deadline. A Profile sorts requests into classes.
//
// Guarantees: a request that may go to other workers than those that are busy is not held up. No class
// with a free worker waits for ever. With Options.MaxWait, Expire lets every request go to a busy worker in
// time, if its caller asks in time. A request that is held costs its class nothing. An operation takes
// O(log n), Claims and WakeHeld O(lanes with a favourite), the release of a worker touches that
// worker's requests only.
//
// Bounds: the waiting requests, their tokens, their sets of workers, and limits by class. A request
// beyond them is refused with a *Rejection and counted.
//
// A Queue has neither lock nor clock; package schedule calls it under its own lock and decides who is
// busy.
package queue
