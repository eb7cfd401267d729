package diskio

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

const (
	// BreakerFailures is how many operations must fail in a row before a breaker opens.
	BreakerFailures = 5
	// The disk is tried again after BreakerPause, and after each try that fails
	// twice as long as before, up to BreakerPauseMax.
	BreakerPause    = time.Second
	BreakerPauseMax = time.Minute
)

// Breaker keeps everybody from a disk that fails or stalls. While it is open nobody uses
// the disk, except for one try now and then. A try that succeeds closes it. A Breaker is
// safe for concurrent use; see Health for the two that a disk has.
type Breaker struct {
	Log *zap.Logger
	// Uses names the operations in logs.
	Uses string

	mu       sync.Mutex
	open     bool
	failures int
	// trying: somebody was let through while it was open, and has not failed yet.
	trying bool
	pauses backoff.Pauses
	pause  time.Duration // the last of pauses
	tryAt  time.Time
	trips  uint64
}

// Allow reports whether the disk may be used now. While the breaker is open it returns
// true once in each pause: that caller is the one that tries.
func (b *Breaker) Allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return true
	}
	now := time.Now()
	if now.Before(b.tryAt) {
		return false
	}
	b.tryAt, b.trying = now.Add(b.pause), true
	return true
}

// Ready reports whether Allow would return true. It does not spend the try.
func (b *Breaker) Ready() bool { return b.UntilTry() == 0 }

// UntilTry is how long it takes until Allow returns true.
func (b *Breaker) UntilTry() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return 0
	}
	return max(time.Until(b.tryAt), 0)
}

// Succeeded reports an operation that went through. It closes the breaker.
func (b *Breaker) Succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	if b.open {
		b.open, b.trying = false, false
		b.Log.Info("the disk works again", zap.String("for", b.Uses))
	}
}

// Failed reports an operation that ended with an error of the device.
func (b *Breaker) Failed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	if b.open || b.failures >= BreakerFailures {
		b.tripLocked(err.Error())
	}
}

// Stalled reports an operation that has not ended in time. It opens the breaker.
func (b *Breaker) Stalled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tripLocked("an operation does not end")
}

// tripLocked opens the breaker, or ends a try. Other failures while it is open belong to
// operations that began before, or to the same try.
func (b *Breaker) tripLocked(why string) {
	if b.open && !b.trying {
		return
	}
	if !b.open {
		b.pauses = backoff.Doubling(BreakerPause, BreakerPauseMax)
	}
	b.trying = false
	b.pause = b.pauses.NextBackOff()
	b.tryAt = time.Now().Add(b.pause)
	if !b.open {
		b.open = true
		b.trips++
		b.Log.Error("the disk fails: going on without it for now",
			zap.String("for", b.Uses), zap.String("why", why), zap.Duration("pause", b.pause))
	}
}

// TryAt moves the next try of an open breaker to a moment. It is for tests.
func (b *Breaker) TryAt(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tryAt = at
}

// IsOpen reports whether the breaker is open. It does not spend the try.
func (b *Breaker) IsOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// Doubtful reports whether the last operation failed, or the breaker is open.
func (b *Breaker) Doubtful() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open || b.failures > 0
}

// State is whether the breaker is open, and how often it opened.
func (b *Breaker) State() (open bool, trips uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.trips
}
