package diskio

import (
	"errors"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Health says whether a disk may be used now. Pools share one, as they share the disk.
// All is the breaker for all operations: it opens when reads fail and when any
// operation stalls. Writes is the breaker for writes only: a disk that only refuses
// writes is still read. Health is safe for concurrent use.
type Health struct {
	All, Writes Breaker
	// Scrub paces the scrubbers of all pools.
	Scrub Pacer
}

// SetLog says where the breakers log. It comes before any other use.
func (h *Health) SetLog(log *zap.Logger) {
	h.All.Log, h.All.Uses = log, "reads and writes"
	h.Writes.Log, h.Writes.Uses = log, "writes"
}

// WriteFailed reports a failed write. Reads go on while they work.
func (h *Health) WriteFailed(err error) {
	h.Writes.Failed(err)
	if h.All.IsOpen() { // the write was its try
		h.All.Failed(err)
	}
}

// Wrote reports a write that went through.
func (h *Health) Wrote() {
	h.All.Succeeded()
	h.Writes.Succeeded()
}

// UntilWrite is how long it takes until AllowWrite returns true.
func (h *Health) UntilWrite() time.Duration { return max(h.All.UntilTry(), h.Writes.UntilTry()) }

// AllowWrite is Breaker.Allow for writes.
func (h *Health) AllowWrite() bool {
	return h.UntilWrite() == 0 && h.All.Allow() && h.Writes.Allow()
}

// WritesOpen reports whether nothing is written to the disk now.
func (h *Health) WritesOpen() bool { return h.All.IsOpen() || h.Writes.IsOpen() }

// WritesDoubtful reports whether the last write failed, or nothing is written: then
// one block at a time shows whether the disk works.
func (h *Health) WritesDoubtful() bool { return h.All.IsOpen() || h.Writes.Doubtful() }

// State reports whether a breaker is open, whether only the one for writes is, and how
// often either opened.
func (h *Health) State() (open, readOnly bool, trips uint64) {
	all, allTrips := h.All.State()
	writes, writeTrips := h.Writes.State()
	return all || writes, writes && !all, allTrips + writeTrips
}

// IsFull reports whether an error says that the file system, or a quota in it, has no
// room left. Neither the disk nor the slot is at fault.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// IsDeviceError reports whether the disk itself is to blame for an error. That there is
// no room, or that no further file can be opened, is not its fault.
func IsDeviceError(err error) bool { return errors.Is(err, unix.EIO) }
