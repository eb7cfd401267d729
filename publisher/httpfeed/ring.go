package httpfeed

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	ringEvents = 4096
	ringBlocks = 256 << 10
)

// ring is the last events of a stream, with contiguous ids. Its events are never
// changed after they were added, so that copies of them may be read without the
// lock that guards the ring.
type ring struct {
	slots []kvevent.RouterEvent // event id is at id % ringEvents; grows to that length
	// The ring holds the events first to next-1; both are 0 before the first.
	first, next uint64
	blocks      int
}

// add appends a copy of e and drops the oldest events beyond the bounds. An event
// that does not follow the last one makes the ring begin anew.
func (r *ring) add(e *kvevent.RouterEvent) {
	if r.slots == nil {
		r.slots = make([]kvevent.RouterEvent, ringEvents)
	}
	if e.ID != r.next {
		clear(r.slots)
		r.first, r.next, r.blocks = e.ID, e.ID, 0
	}
	for r.first < r.next && (r.next-r.first == ringEvents || r.blocks+e.NumBlocks() > ringBlocks) {
		old := &r.slots[r.first%ringEvents]
		r.blocks -= old.NumBlocks()
		*old = kvevent.RouterEvent{}
		r.first++
	}
	c := *e
	c.Blocks, c.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	r.slots[e.ID%ringEvents] = c
	r.next++
	r.blocks += e.NumBlocks()
}

// holds reports whether all events from id on are there.
func (r *ring) holds(id uint64) bool { return r.first <= id && id < r.next }

// appendMessage appends to dst the events from id to last, as many as go into one
// message; id must be held. At least one is appended.
func (r *ring) appendMessage(dst []kvevent.RouterEvent, id, last uint64) []kvevent.RouterEvent {
	blocks := 0
	for n := 0; id <= last && id < r.next && n < kvevent.MaxEventsPerMessage; id, n = id+1, n+1 {
		e := &r.slots[id%ringEvents]
		if blocks += e.NumBlocks(); n > 0 && blocks > kvevent.MaxBlocksPerMessage {
			break
		}
		dst = append(dst, *e)
	}
	return dst
}

// messageLen is how many of events go into one message.
func messageLen(events []kvevent.RouterEvent) int {
	blocks := 0
	for i := range events {
		blocks += events[i].NumBlocks()
		if i == kvevent.MaxEventsPerMessage || i > 0 && blocks > kvevent.MaxBlocksPerMessage {
			return i
		}
	}
	return len(events)
}
