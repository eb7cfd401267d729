package dynamo

import "github.com/blockyard-ai/blockyard/internal/kvevent"

// ringEvents is how many events a recovery query can get one by one.
const ringEvents = 1024

// ring holds the last events of the wire, with contiguous ids. An event is never
// changed after it was added.
type ring struct {
	events []kvevent.RouterEvent // event id is at id % ringEvents
	// The ring holds first to next-1. next is the id of the next event, from 1.
	first, next uint64
}

func newRing() *ring {
	return &ring{events: make([]kvevent.RouterEvent, ringEvents), first: 1, next: 1}
}

// add gives e the next id and keeps it.
func (r *ring) add(e *kvevent.RouterEvent) {
	e.ID = r.next
	if r.next-r.first == ringEvents {
		r.first++
	}
	r.events[e.ID%ringEvents] = *e
	r.next++
}

// skip leaves one id out, so that every reader finds a hole behind the last event.
func (r *ring) skip() {
	clear(r.events)
	r.next++
	r.first = r.next
}

// last is the id of the last event; 0 before the first.
func (r *ring) last() uint64 { return r.next - 1 }

// from returns copies of the events from id on; false when one of them is gone. A
// cleared event makes all before it void, so that the answer begins with the last
// one.
func (r *ring) from(id uint64) ([]kvevent.RouterEvent, bool) {
	if id < r.first || id >= r.next {
		return nil, false
	}
	for c := id; c < r.next; c++ {
		if r.events[c%ringEvents].Kind == kvevent.Cleared {
			id = c
		}
	}
	events := make([]kvevent.RouterEvent, 0, r.next-id)
	for ; id < r.next; id++ {
		events = append(events, r.events[id%ringEvents])
	}
	return events, true
}
