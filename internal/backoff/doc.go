// Package backoff makes the growing pauses between tries that fail.
//
//	pauses := backoff.Doubling(time.Second, time.Minute)
//	for connect() != nil && backoff.Wait(ctx, pauses.NextBackOff()) { // 1 s, 2 s, 4 s … 1 min, 1 min
//	}
//	pauses.Reset()
//
// It is github.com/cenkalti/backoff/v5 with the two rules of this repository: pauses
// double, and a pause with jitter is never longer than the same pause without. The
// package holds no goroutine. Pauses belong to one goroutine.
//
// A Breaker keeps a service that fails from delaying every request that asks it.
package backoff
