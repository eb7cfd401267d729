package publisher

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	journalEvents = 4096
	journalBlocks = 256 << 10
)

// journal is a ring of the last events of a stream, with contiguous ids. Its
// events are never changed after they were added, so that copies of them may be
// read without the lock that guards the journal.
type journal struct {
	ring []kvevent.RouterEvent // journalEvents long; event id is at id % len
	// The journal holds the events first to next-1; both are 0 before the first.
	first, next uint64
	blocks      int
}

func newJournal() *journal { return &journal{ring: make([]kvevent.RouterEvent, journalEvents)} }

// add appends a copy of e and drops the oldest events beyond the bounds. An event
// that does not follow the last one makes the journal begin anew.
func (j *journal) add(e *kvevent.RouterEvent) {
	if e.ID != j.next {
		j.reset(e.ID)
	}
	for j.first < j.next && (j.next-j.first == journalEvents || j.blocks+e.NumBlocks() > journalBlocks) {
		old := &j.ring[j.first%journalEvents]
		j.blocks -= old.NumBlocks()
		*old = kvevent.RouterEvent{}
		j.first++
	}
	c := *e
	c.Blocks, c.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	j.ring[e.ID%journalEvents] = c
	j.next++
	j.blocks += e.NumBlocks()
}

func (j *journal) reset(id uint64) {
	clear(j.ring)
	j.first, j.next, j.blocks = id, id, 0
}

// holds reports whether all events from id on are there.
func (j *journal) holds(id uint64) bool { return j.first <= id && id < j.next }

// appendBatch appends the events from id on to dst, as many as go into one
// message of at most maxBytes; id must be held. At least one is appended.
func (j *journal) appendBatch(dst []kvevent.RouterEvent, id uint64, maxBytes int) []kvevent.RouterEvent {
	room := newRoom(maxBytes)
	for ; id < j.next; id++ {
		e := &j.ring[id%journalEvents]
		if !room.take(e) {
			break
		}
		dst = append(dst, *e)
	}
	return dst
}
