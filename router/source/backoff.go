package source

import (
	"math/rand/v2"
	"time"
)

// Backoff is the time to wait after the n-th failure.
func Backoff(n int, first, last time.Duration) time.Duration {
	d := first
	for range n - 1 {
		if d >= last {
			break
		}
		d *= 2
	}
	return min(d, last)
}

// Jittered is a time between half of d and d, so that those who failed together do
// not try again together.
func Jittered(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
