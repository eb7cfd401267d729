package diskio

import (
	"errors"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Health says whether a disk may be used now. The pools on a disk share it. All is the breaker
// for all operations: it opens when reads fail or any operation stalls. Writes is the breaker
// for writes: the pools still read a disk that only refuses writes. Health is safe for
// concurrent use.
type Health struct {
	All, Writes Breaker
	// Scrub paces the scrubbers of all pools.
	Scrub Pacer
}

// SetLog sets the log of the breakers. It must be the first call.
func (h *Health) SetLog(log *zap.Logger) {
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

// AllowWrite is Breaker.Allow for writes.
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
