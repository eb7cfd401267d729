package consolidated

import (
	"context"
	"time"
)

// flushDelay is the time for which changes wait for further ones, so that the blocks of one
// COMMIT or eviction travel in one event.
const flushDelay = 2 * time.Millisecond

// Flusher flushes streams shortly after they change.
type Flusher struct{ dirty chan struct{} }

// NewFlusher returns a Flusher without changes.
func NewFlusher() Flusher { return Flusher{make(chan struct{}, 1)} }

// Changed has Run flush soon. It never blocks.
func (f Flusher) Changed() {
	select {
	case f.dirty <- struct{}{}:
	default: // a flush is due already
	}
}

// Run calls flush after changes until ctx ends, and once more then.
func (f Flusher) Run(ctx context.Context, flush func()) {
	timer := time.NewTimer(flushDelay)
	timer.Stop()
	for {
		select {
		case <-f.dirty:
			timer.Reset(flushDelay)
		case <-ctx.Done():
			timer.Stop()
			flush()
			return
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		flush()
	}
}
