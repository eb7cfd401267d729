package blockmgr

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// breakerFailures is how many operations must fail in a row before the disk is
	// left alone.
	breakerFailures = 5
	// The disk is tried again after breakerPause, and after each try that fails
	// twice as long as before, up to breakerPauseMax.
	breakerPause    = time.Second
	breakerPauseMax = time.Minute
)

// breaker keeps a disk that fails or stalls out of the way of everything else:
// while it is open nobody uses the disk, but for one try now and then, whose success
// closes it. All pools share two, as they share the disk: one is for all operations
// and opens by reads that fail and by stalls, the other is for writes alone.
type breaker struct {
	log *zap.Logger
	// uses names the operations in logs.
	uses string

	mu       sync.Mutex
	open     bool
	failures int
	// trying: somebody was let through while it was open, and has not failed yet.
	trying bool
	pause  time.Duration
	tryAt  time.Time
	trips  uint64
}

// allow reports whether the disk may be used now. While the breaker is open it
// says so once in each pause: the caller is the one that tries.
func (b *breaker) allow() bool {
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

// ready reports whether allow would say yes, and leaves the try to whoever comes
// to the point of using the disk.
func (b *breaker) ready() bool { return b.untilTry() == 0 }

// untilTry is how long it takes until allow says yes.
func (b *breaker) untilTry() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return 0
	}
	return max(time.Until(b.tryAt), 0)
}

// succeeded says that an operation went through.
func (b *breaker) succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	if b.open {
		b.open, b.trying, b.pause = false, false, 0
		b.log.Info("the disk works again", zap.String("for", b.uses))
	}
}

// failed says that an operation ended with an error of the device.
func (b *breaker) failed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	if b.open || b.failures >= breakerFailures {
		b.tripLocked(err.Error())
	}
}

// stalled says that an operation has not ended in time.
func (b *breaker) stalled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tripLocked("an operation does not end")
}

// tripLocked opens the breaker, or ends a try. What else fails while it is open
// was under way before, or belongs to the same try.
func (b *breaker) tripLocked(why string) {
	if b.open && !b.trying {
		return
	}
	b.trying = false
	b.pause = min(max(2*b.pause, breakerPause), breakerPauseMax)
	b.tryAt = time.Now().Add(b.pause)
	if !b.open {
		b.open = true
		b.trips++
		b.log.Error("the disk fails: going on without it for now",
			zap.String("for", b.uses), zap.String("why", why), zap.Duration("pause", b.pause))
	}
}

// isOpen reports whether the disk is left alone now. Unlike allow it tries
// nothing.
func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// doubtful reports whether the last operation failed.
func (b *breaker) doubtful() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open || b.failures > 0
}

// state is whether the breaker is open, and how often it opened.
func (b *breaker) state() (open bool, trips uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.trips
}
