package dynamo

import (
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of an inbox.
const (
	inboxEvents = 4096
	inboxBlocks = 256 << 10
)

// inbox holds the events of a stream, with the stream's ids, that were not
// numbered for the wire yet. Its mutex is the last lock of all.
type inbox struct {
	mu     sync.Mutex
	events []kvevent.RouterEvent
	blocks int
	next   uint64 // id that the next event should have; 0: any
	lost   bool   // events between two of the stream's are missing
	closed bool
	// dropped are events that came in and were given up, afterClose those that came
	// too late.
	dropped, afterClose uint64
}

// add appends copies of events. What does not fit, or does not follow, makes the
// inbox begin anew: what is left always follows itself.
func (b *inbox) add(events []kvevent.RouterEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		b.afterClose += uint64(len(events))
		return
	}
	for i := range events {
		e := &events[i]
		gap := b.next != 0 && e.ID != b.next
		if gap || len(b.events) == inboxEvents || b.blocks+e.NumBlocks() > inboxBlocks && len(b.events) > 0 {
			b.lost = true
			b.dropLocked()
		}
		c := *e
		c.Blocks, c.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
		b.events = append(b.events, c)
		b.blocks += e.NumBlocks()
		b.next = e.ID + 1
	}
}

func (b *inbox) dropLocked() {
	b.dropped += uint64(len(b.events))
	clear(b.events)
	b.events, b.blocks = b.events[:0], 0
}

// take moves the events with ids up to last to dst, in order.
func (b *inbox) take(dst []kvevent.RouterEvent, last uint64) []kvevent.RouterEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.upToLocked(last)
	dst = append(dst, b.events[:n]...)
	b.events = slices.Delete(b.events, 0, n)
	return dst
}

// upToLocked is how many events have ids up to last; their blocks do not count any
// more.
func (b *inbox) upToLocked(last uint64) int {
	n := 0
	for n < len(b.events) && b.events[n].ID <= last {
		b.blocks -= b.events[n].NumBlocks()
		n++
	}
	return n
}

// forward leaves out the events up to last, because a snapshot holds them, and
// reports whether what is left follows it. If it does, nothing is lost any more.
func (b *inbox) forward(last uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = slices.Delete(b.events, 0, b.upToLocked(last))
	switch {
	case len(b.events) > 0:
		b.lost = b.events[0].ID != last+1
	case b.next == 0 || b.next <= last+1:
		b.next, b.lost = last+1, false
	default: // what followed the snapshot was dropped
		b.lost = true
	}
	return !b.lost
}

// hasLost reports whether events are missing.
func (b *inbox) hasLost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// close refuses further events and drops those there are.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.dropLocked()
}

// state is the length of the inbox and its counters.
func (b *inbox) state() (waiting int, dropped, afterClose uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events), b.dropped, b.afterClose
}
