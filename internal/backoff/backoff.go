package backoff

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Pauses is a sequence of pauses: NextBackOff returns the next one, Reset begins
// again with the first.
type Pauses = backoff.ExponentialBackOff

// Doubling returns pauses that begin with first and double up to limit.
func Doubling(first, limit time.Duration) Pauses {
	return Pauses{InitialInterval: min(first, limit), Multiplier: 2, MaxInterval: limit}
}

// Jittered returns pauses as Doubling does, each drawn evenly between its half and its
// whole length, so that processes that failed together do not try again together.
func Jittered(first, limit time.Duration) Pauses {
	p := Doubling(first*3/4, limit*3/4)
	p.RandomizationFactor = 1.0 / 3
	return p
}

// Nth returns the n-th of pauses, from 1, for a caller that counts its failures anyway.
func Nth(pauses Pauses, n int) (pause time.Duration) {
	for range min(n, 64) { // 64 doublings reach every limit
		pause = pauses.NextBackOff()
	}
	return pause
}

// Wait waits for the pause. It returns false when ctx ended first.
func Wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
