package publisher

import (
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// inboxBlocks bounds the blocks of the events that wait in an Inbox. One event has room
// whatever its size is.
const inboxBlocks = 256 << 10

// Inbox is a bounded queue of events between a stream and the goroutine that publishes them in
// another numbering. Add runs under the stream's lock. Events without room, or a gap in the
// stream, make the inbox lossy: then the goroutine restates the whole state from a snapshot and
// calls Resync. The inbox's mutex is a leaf.
type Inbox struct {
	maxEvents int
	wake      func()

	mu         sync.Mutex
	events     []kvevent.RouterEvent // follow one another
	blocks     int
	nextID     uint64 // expected id of the next event; 0: any
	lossy      bool   // events before events[0] are missing
	stateGrown bool   // MarkDirty was called since Begin
	woken      bool   // wake was called since Begin
	closed     bool
	count      InboxStats
	copies     slab

	// lends: copies has the blocks of the queued events, lent the blocks of the events that
	// TakeAll returned last. TakeAll swaps the two.
	lends bool
	lent  slab
}

// InboxStats are an inbox's counters.
type InboxStats struct {
	// Waiting events are in the inbox now.
	Waiting int
	// Overflows counts how often the inbox became lossy because it was full, Gaps how often
	// because the stream had a gap. Dropped counts the events that were dropped, AfterClose
	// those that came after Close.
	Overflows, Gaps, Dropped, AfterClose uint64
}

// NewInbox returns an empty inbox of at most maxEvents. After each Begin the inbox calls wake
// once, for the first event or mark. wake must not block and must not call the inbox.
func NewInbox(maxEvents int, wake func()) *Inbox {
	return &Inbox{maxEvents: maxEvents, wake: wake}
}

// NewLendingInbox returns an inbox that is read with TakeAll and not with Take. It reuses the
// memory of its events.
func NewLendingInbox(maxEvents int, wake func()) *Inbox {
	b := NewInbox(maxEvents, wake)
	b.lends, b.copies.grows, b.lent.grows = true, true, true
	return b
}

// Add queues copies of events and wakes the publishing goroutine. The stream calls Add under its
// lock, so Add never blocks: a full inbox drops the queued events and is lossy, which means that
// the goroutine must send a snapshot. Events after Close are counted and ignored.
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

// addLocked queues a copy of e. When e does not follow the last event, or has no room, the queued
// events are dropped and the inbox is lossy: the publishing goroutine then sends a snapshot of the
// stream. e is queued all the same, because e may follow that snapshot.
func (b *Inbox) addLocked(e *kvevent.RouterEvent) {
	gap := b.nextID != 0 && e.ID != b.nextID // nextID 0: any first event
	full := len(b.events) == b.maxEvents || len(b.events) > 0 && b.blocks+e.NumBlocks() > inboxBlocks
	if gap || full {
		switch {
		case gap:
			b.count.Gaps++
		case !b.lossy: // a lossy inbox has counted its overflow
			b.count.Overflows++
		}
		b.lossy = true
		b.dropLocked()
	}
	b.events = append(b.events, b.copies.clone(e))
	b.blocks += e.NumBlocks()
	b.nextID = e.ID + 1
}

// dropLocked drops and counts the queued events.
func (b *Inbox) dropLocked() {
	b.count.Dropped += uint64(len(b.events))
	clear(b.events)
	b.events, b.blocks = b.events[:0], 0
	b.reuseLocked()
}

// reuseLocked makes the memory of the copies free for new events. The inbox must be empty.
func (b *Inbox) reuseLocked() {
	if b.lends {
		b.copies.reset()
	}
}

// Wake wakes the goroutine for a reason outside the inbox.
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

// MarkDirty asks for a restatement although no event is missing: the state grew without events,
// or its readers dropped it.
func (b *Inbox) MarkDirty() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stateGrown = true
	b.wakeLocked()
}

// Begin begins a turn of the publishing goroutine: the next event calls wake again. It reports
// whether MarkDirty was called since the last turn.
func (b *Inbox) Begin() (dirty bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	dirty = b.stateGrown
	b.stateGrown, b.woken = false, false
	return dirty
}

// Lost reports whether events are missing before those in the inbox.
func (b *Inbox) Lost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lossy
}

// Take moves the events with ids up to last to dst, in order. It moves none while events before
// them are missing. The inbox does not reuse their memory.
func (b *Inbox) Take(dst []kvevent.RouterEvent, last uint64) []kvevent.RouterEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lossy {
		return dst
	}
	n := b.upToLocked(last)
	dst = append(dst, b.events[:n]...)
	b.removeLocked(n)
	return dst
}

// TakeAll takes all events out of a lending inbox, which reuses their memory: their blocks are valid
// until the next TakeAll. cleared is the slice of the last TakeAll, which the caller has cleared. It
// returns no events while events before them are missing.
func (b *Inbox) TakeAll(cleared []kvevent.RouterEvent) []kvevent.RouterEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lossy {
		return cleared[:0]
	}
	events := b.events
	b.events, b.blocks = cleared[:0], 0
	b.copies, b.lent = b.lent, b.copies // new events get the memory of the last but one TakeAll
	b.reuseLocked()
	return events
}

// Resync drops the queued events up to id last, which a snapshot of the stream includes. It
// returns true when the other events follow the snapshot without a gap; then the inbox is no
// longer lossy: no event is missing before the queued ones. After false the caller needs a
// newer snapshot.
func (b *Inbox) Resync(last uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.upToLocked(last)
	if b.lossy { // nobody has published these events, nor will
		b.count.Dropped += uint64(n)
	}
	b.removeLocked(n)
	switch {
	case len(b.events) > 0:
		b.lossy = b.events[0].ID != last+1
	case b.nextID <= last+1: // the snapshot includes every event that was added
		b.nextID, b.lossy = last+1, false
	default: // the events that followed the snapshot were dropped
		b.lossy = true
	}
	return !b.lossy
}

// upToLocked returns how many events have ids up to last.
func (b *Inbox) upToLocked(last uint64) int {
	n := 0
	for n < len(b.events) && b.events[n].ID <= last {
		n++
	}
	return n
}

// removeLocked removes the first n events from the queue.
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

// Close drops and counts the queued events, and refuses later ones. After Close the inbox does
// not call wake.
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
