package publisher

import (
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// inboxBlocks bounds the blocks of the events that wait in an Inbox. One event has room
// whatever its size is.
const inboxBlocks = 256 << 10

// Inbox takes events from under a stream's lock to the goroutine that restates them in
// other words. It is bounded. Events that find no room, or a gap in the stream, make
// the inbox lossy: the goroutine then states everything again from a snapshot and calls
// Resync. The inbox's mutex is the last lock of all.
type Inbox struct {
	maxEvents int
	wake      func()

	mu     sync.Mutex
	events []kvevent.RouterEvent // follow one another
	blocks int
	next   uint64 // id that the next event should have; 0: any
	lost   bool   // events before events[0] are missing
	dirty  bool
	woken  bool // wake was called since Begin
	closed bool
	count  InboxStats
	copies slab

	// lends: the blocks of the events in the inbox are in copies, and those of the events
	// that TakeAll returned last are in lent. The two change places at every TakeAll.
	lends bool
	lent  slab
}

// InboxStats are an inbox's counters.
type InboxStats struct {
	// Waiting events are in the inbox now.
	Waiting int
	// Overflows counts how often the inbox became lossy because it was full, and Gaps
	// how often because events were missing in the stream. Dropped events were given up
	// then. AfterClose events came after Close.
	Overflows, Gaps, Dropped, AfterClose uint64
}

// NewInbox returns an empty inbox of at most maxEvents. It calls wake once when there
// is something to do after Begin; wake must not block and must not call the inbox.
func NewInbox(maxEvents int, wake func()) *Inbox {
	return &Inbox{maxEvents: maxEvents, wake: wake}
}

// NewLendingInbox returns an inbox that is read with TakeAll and not with Take. It uses
// the memory of its events again.
func NewLendingInbox(maxEvents int, wake func()) *Inbox {
	b := NewInbox(maxEvents, wake)
	b.lends, b.copies.grows, b.lent.grows = true, true, true
	return b
}

// Add takes copies of events. It never blocks.
func (b *Inbox) Add(events []kvevent.RouterEvent) {
	if len(events) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		b.count.AfterClose += uint64(len(events))
		return
	}
	for i := range events {
		b.addLocked(&events[i])
	}
	b.wakeLocked()
}

func (b *Inbox) addLocked(e *kvevent.RouterEvent) {
	gap := b.next != 0 && e.ID != b.next
	full := len(b.events) == b.maxEvents || len(b.events) > 0 && b.blocks+e.NumBlocks() > inboxBlocks
	if gap || full {
		switch {
		case gap:
			b.count.Gaps++
		case !b.lost:
			b.count.Overflows++
		}
		b.lost = true
		b.dropLocked()
	}
	b.events = append(b.events, b.copies.clone(e))
	b.blocks += e.NumBlocks()
	b.next = e.ID + 1
}

func (b *Inbox) dropLocked() {
	b.count.Dropped += uint64(len(b.events))
	clear(b.events)
	b.events, b.blocks = b.events[:0], 0
	b.reuseLocked()
}

// reuseLocked uses the memory of the copies again. No event may wait.
func (b *Inbox) reuseLocked() {
	if b.lends {
		b.copies.reset()
	}
}

// Wake wakes the goroutine for a reason that the inbox does not know.
func (b *Inbox) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakeLocked()
}

func (b *Inbox) wakeLocked() {
	if !b.woken && !b.closed {
		b.woken = true
		b.wake()
	}
}

// MarkDirty says that everything must be stated again although no event is missing:
// the state grew without events, or its readers forgot it.
func (b *Inbox) MarkDirty() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dirty = true
	b.wakeLocked()
}

// Begin begins a turn of the goroutine. It reports and clears the mark of MarkDirty.
func (b *Inbox) Begin() (dirty bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	dirty = b.dirty
	b.dirty, b.woken = false, false
	return dirty
}

// Lost reports whether events are missing before those in the inbox.
func (b *Inbox) Lost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

// Take moves the events with ids up to last to dst, in order; none while events before
// them are missing. The events share memory with nothing that changes.
func (b *Inbox) Take(dst []kvevent.RouterEvent, last uint64) []kvevent.RouterEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost {
		return dst
	}
	n := b.upToLocked(last)
	dst = append(dst, b.events[:n]...)
	b.removeLocked(n)
	return dst
}

// TakeAll exchanges the events of a lending inbox for those that the last TakeAll
// returned, which must be cleared. It returns none while events before them are missing.
// The blocks of the events are lent until the next TakeAll.
func (b *Inbox) TakeAll(cleared []kvevent.RouterEvent) []kvevent.RouterEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost {
		return cleared[:0]
	}
	events := b.events
	b.events, b.blocks = cleared[:0], 0
	b.copies, b.lent = b.lent, b.copies
	b.reuseLocked()
	return events
}

// Resync gives up the events up to last, because a snapshot has them. It reports
// whether the events that are left follow the snapshot. If they do, nothing is lost any
// more.
func (b *Inbox) Resync(last uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.upToLocked(last)
	if b.lost {
		b.count.Dropped += uint64(n)
	}
	b.removeLocked(n)
	switch {
	case len(b.events) > 0:
		b.lost = b.events[0].ID != last+1
	case b.next <= last+1:
		b.next, b.lost = last+1, false
	default: // the events that followed the snapshot were dropped
		b.lost = true
	}
	return !b.lost
}

// upToLocked returns how many events have ids up to last.
func (b *Inbox) upToLocked(last uint64) int {
	n := 0
	for n < len(b.events) && b.events[n].ID <= last {
		n++
	}
	return n
}

// removeLocked removes the first n events.
func (b *Inbox) removeLocked(n int) {
	for i := range b.events[:n] {
		b.blocks -= b.events[i].NumBlocks()
	}
	left := copy(b.events, b.events[n:])
	clear(b.events[left:])
	b.events = b.events[:left]
	if left == 0 {
		b.reuseLocked()
	}
}

// Close refuses further events, and drops and counts those that wait. wake is not
// called any more.
func (b *Inbox) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.dropLocked()
}

// Stats returns the counters.
func (b *Inbox) Stats() InboxStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.count
	s.Waiting = len(b.events)
	return s
}
