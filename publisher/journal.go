package publisher

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// JournalEvents is how many events a Journal holds at most, journalBlocks how many blocks.
const (
	JournalEvents = 4096
	journalBlocks = 256 << 10
)

// Journal is a ring of the last events of a stream, with contiguous ids: 4,096 of them
// and 256 Ki blocks at most. Its events are never changed after they were added, so
// that copies of them may be read without the lock that guards the journal. The zero
// value is ready for use.
type Journal struct {
	ring []kvevent.RouterEvent // JournalEvents long, or nil; event id is at id % len
	// The journal holds the events first to next-1; both are 0 before the first.
	first, next uint64
	blocks      int
}

// Add appends a copy of e and drops the oldest events beyond the bounds. An event
// that does not follow the last one makes the journal begin anew.
func (j *Journal) Add(e *kvevent.RouterEvent) {
	if j.ring == nil {
		j.ring = make([]kvevent.RouterEvent, JournalEvents)
	}
	if e.ID != j.next {
		j.reset(e.ID)
	}
	for j.first < j.next && (j.next-j.first == JournalEvents || j.blocks+e.NumBlocks() > journalBlocks) {
		old := &j.ring[j.first%JournalEvents]
		j.blocks -= old.NumBlocks()
		*old = kvevent.RouterEvent{}
		j.first++
	}
	c := *e
	c.Blocks, c.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	j.ring[e.ID%JournalEvents] = c
	j.next++
	j.blocks += e.NumBlocks()
}

func (j *Journal) reset(id uint64) {
	clear(j.ring)
	j.first, j.next, j.blocks = id, id, 0
}

// Held is the range of ids in the journal, from first to next-1; both are 0 before the
// first event.
func (j *Journal) Held() (first, next uint64) { return j.first, j.next }

// Holds reports whether all events from id on are there.
func (j *Journal) Holds(id uint64) bool { return j.first <= id && id < j.next }

// Range copies the events from start to end; false when the journal does not hold all of
// them.
func (j *Journal) Range(start, end uint64) ([]kvevent.RouterEvent, bool) {
	if !j.Holds(start) || !j.Holds(end) {
		return nil, false
	}
	events := make([]kvevent.RouterEvent, 0, end-start+1)
	for id := start; id <= end; id++ {
		events = append(events, j.ring[id%JournalEvents])
	}
	return events, true
}

// AppendMessage appends the events from id to last to dst, as many as go into one
// message of at most maxBytes; id must be held. At least one is appended.
func (j *Journal) AppendMessage(dst []kvevent.RouterEvent, id, last uint64, maxBytes int) []kvevent.RouterEvent {
	room := newRoom(maxBytes)
	for ; id <= last && id < j.next; id++ {
		e := &j.ring[id%JournalEvents]
		if !room.take(e) {
			break
		}
		dst = append(dst, *e)
	}
	return dst
}

// MessageLen is how many of events go into one message of at most maxBytes.
func MessageLen(events []kvevent.RouterEvent, maxBytes int) int {
	room := newRoom(maxBytes)
	for i := range events {
		if !room.take(&events[i]) {
			return i
		}
	}
	return len(events)
}
