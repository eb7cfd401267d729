package diskio

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

const (
	// BreakerFailures is the number of failures in a row that opens a breaker.
	BreakerFailures = 5
	// The first try of an open breaker comes after BreakerPause. Each failed try doubles the
	// pause, up to BreakerPauseMax.
	BreakerPause    = time.Second
	BreakerPauseMax = time.Minute
)

// Breaker stops the use of a disk that fails or stalls. While it is open it allows one try in
// each pause and no other operation. A successful try closes it. A Breaker is safe for
// concurrent use. A disk has two; see Health.
type Breaker struct {
	Log *zap.Logger
	// Uses names the operations in logs.
	Uses string
	// Now tells the time; nil for time.Now.
	Now func() time.Time

	mu       sync.Mutex
	open     bool
	failures int
	// trying: the breaker is open and has allowed a try, which has not failed yet.
	trying bool
	pauses backoff.Pauses
	pause  time.Duration // the last of pauses
	tryAt  time.Time
	trips  uint64
}

// Allow reports whether the disk may be used now. While the breaker is open Allow returns true
// once in each pause: the caller makes the try.
func (b *Breaker) Allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return true
	}
	now := b.now()
	if now.Before(b.tryAt) {
		return false
	}
	b.tryAt, b.trying = now.Add(b.pause), true
	return true
}

// Ready reports whether Allow would return true. Unlike Allow, Ready does not begin a try.
func (b *Breaker) Ready() bool { return b.UntilTry() == 0 }

// UntilTry returns the time until Allow returns true.
func (b *Breaker) UntilTry() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return 0
	}
	return max(b.tryAt.Sub(b.now()), 0)
}

// Succeeded reports a successful operation. It closes the breaker.
func (b *Breaker) Succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	if b.open {
		b.open, b.trying = false, false
		b.Log.Info("the disk works again", zap.String("for", b.Uses))
	}
}

// Failed reports an operation that failed with a device error. BreakerFailures in a row open the
// breaker. The failure of a try doubles the pause until the next one.
func (b *Breaker) Failed(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	if b.open || b.failures >= BreakerFailures {
		b.tripLocked(err.Error())
	}
}

// Stalled reports an operation that has not ended in time. It opens the breaker at once.
func (b *Breaker) Stalled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tripLocked("an operation does not end")
}

// tripLocked opens the breaker, or ends a try without success and begins the next pause. why goes
// into the log. It ignores other failures of an open breaker: their operations began before the
// breaker opened, or belong to the ended try.
func (b *Breaker) tripLocked(why string) {
	if b.open && !b.trying {
		return
	}
	if !b.open {
		b.pauses = backoff.Doubling(BreakerPause, BreakerPauseMax)
	}
	b.trying = false
	b.pause = b.pauses.NextBackOff()
	b.tryAt = b.now().Add(b.pause)
	if !b.open {
		b.open = true
		b.trips++
		b.Log.Error("the disk fails: the agent goes on without it for now",
			zap.String("for", b.Uses), zap.String("why", why), zap.Duration("pause", b.pause))
	}
}

// now returns the time of the breaker's clock.
func (b *Breaker) now() time.Time {
	if b.Now != nil {
		return b.Now()
	}
	return time.Now()
}

// IsOpen reports whether the breaker is open. Unlike Allow, IsOpen does not begin a try.
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

// State returns whether the breaker is open, and how often it has opened.
func (b *Breaker) State() (open bool, trips uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open, b.trips
}

// Health says whether a disk may be used now. The pools on a disk share it. All is the breaker
// for all operations: it opens when reads fail or any operation stalls. Writes is the breaker
// for writes: the pools still read a disk that only refuses writes. Health is safe for
// concurrent use.
type Health struct {
	All, Writes Breaker
	// Scrub paces the scrubbers of all pools.
	Scrub Pacer
}

// Init sets the log and the clock of the breakers; a nil clock is time.Now. It must be the first
// call.
func (h *Health) Init(log *zap.Logger, now func() time.Time) {
	h.All.Now, h.Writes.Now = now, now
	h.All.Log, h.All.Uses = log, "reads and writes"
	h.Writes.Log, h.Writes.Uses = log, "writes"
}

// WriteFailed reports a failed write. It does not stop reads.
func (h *Health) WriteFailed(err error) {
	h.Writes.Failed(err)
	if h.All.IsOpen() { // the write was its try
		h.All.Failed(err)
	}
}

// Wrote reports a successful write.
func (h *Health) Wrote() {
	h.All.Succeeded()
	h.Writes.Succeeded()
}

// UntilWrite returns the time until AllowWrite returns true.
func (h *Health) UntilWrite() time.Duration { return max(h.All.UntilTry(), h.Writes.UntilTry()) }

// AllowWrite reports whether a write may begin now. Of several callers after a failure, one may
// try the disk again.
func (h *Health) AllowWrite() bool {
	return h.UntilWrite() == 0 && h.All.Allow() && h.Writes.Allow()
}

// WritesStopped reports whether an open breaker stops writes now.
func (h *Health) WritesStopped() bool { return h.All.IsOpen() || h.Writes.IsOpen() }

// WritesDoubtful reports whether the last write failed or a breaker stops writes. The writer
// then writes one block at a time.
func (h *Health) WritesDoubtful() bool { return h.All.IsOpen() || h.Writes.Doubtful() }

// State returns whether a breaker is open, whether it is only the one for writes, and how often
// the two have opened.
func (h *Health) State() (open, readOnly bool, trips uint64) {
	all, allTrips := h.All.State()
	writes, writeTrips := h.Writes.State()
	return all || writes, writes && !all, allTrips + writeTrips
}

// IsFull reports whether err says that the file system or a quota is full. The disk and the slot
// are not at fault.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// IsDeviceError reports whether err is an error of the disk itself. A full file system and a
// limit of open files are not.
func IsDeviceError(err error) bool { return errors.Is(err, unix.EIO) }
