package publisher

import (
	"iter"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// JournalEvents bounds the events in the journal of a Feed, journalBlocks the blocks in them.
const (
	JournalEvents = 4096
	journalBlocks = 256 << 10
)

// Journal holds the newest entries of a numbered sequence, up to a number of entries and a total
// weight. Appended entries never change, so that copies of them may be read without the lock
// that guards the journal.
type Journal[T any] struct {
	entries   int
	maxWeight int
	weigh     func(*T) int

	ring []T // entry n is at n % entries; nil before the first entry
	// The journal holds the entries first to next-1; both are 0 before the first entry.
	first, next uint64
	weight      int
}

// NewJournal returns an empty journal of at most that many entries, whose weights add up to at
// most maxWeight. A single entry may have any weight.
func NewJournal[T any](entries, maxWeight int, weigh func(*T) int) *Journal[T] {
	return &Journal[T]{entries: entries, maxWeight: maxWeight, weigh: weigh}
}

// newEventJournal returns the journal of a Feed.
func newEventJournal() *Journal[kvevent.RouterEvent] {
	return NewJournal(JournalEvents, journalBlocks, (*kvevent.RouterEvent).NumBlocks)
}

// Append adds entry number n and drops the oldest entries beyond the bounds, of number and of
// weight. A number that does not follow the last one empties the journal first. The new entry
// stays even if it alone is too heavy.
func (j *Journal[T]) Append(n uint64, entry T) {
	if j.ring == nil {
		j.ring = make([]T, j.entries)
	}
	if n != j.next {
		clear(j.ring)
		j.first, j.next, j.weight = n, n, 0
	}
	if j.next-j.first == uint64(j.entries) { // the ring is full
		j.dropOldest()
	}
	slot := j.at(n)
	*slot = entry
	w := j.weigh(slot)
	for j.first < j.next && j.weight+w > j.maxWeight {
		j.dropOldest()
	}
	j.next++
	j.weight += w
}

func (j *Journal[T]) dropOldest() {
	old := j.at(j.first)
	j.weight -= j.weigh(old)
	*old = *new(T)
	j.first++
}

// Skip skips one number and empties the journal: readers of the sequence find a gap behind the
// last entry.
func (j *Journal[T]) Skip() {
	clear(j.ring)
	j.next++
	j.first, j.weight = j.next, 0
}

func (j *Journal[T]) at(n uint64) *T { return &j.ring[n%uint64(j.entries)] }

// Held returns the range of numbers in the journal, from first to next-1. Both are 0
// before the first entry.
func (j *Journal[T]) Held() (first, next uint64) { return j.first, j.next }

// Holds reports whether the journal has entry n.
func (j *Journal[T]) Holds(n uint64) bool { return j.first <= n && n < j.next }

// From yields the entries from number n on, or from the oldest entry if that is newer.
func (j *Journal[T]) From(n uint64) iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		for n := max(n, j.first); n < j.next && yield(n, j.at(n)); n++ {
		}
	}
}

// Range returns copies of the entries with the numbers first to last; false when the journal does
// not have all of them.
func (j *Journal[T]) Range(first, last uint64) ([]T, bool) {
	if !j.Holds(first) || !j.Holds(last) || last < first {
		return nil, false
	}
	entries := make([]T, 0, last-first+1)
	for n := first; n <= last; n++ {
		entries = append(entries, *j.at(n))
	}
	return entries, true
}

// FromLastCleared returns the events from the last cleared event on. A cleared event voids all
// events before it.
func FromLastCleared(events []kvevent.RouterEvent) []kvevent.RouterEvent {
	for i := len(events) - 1; i > 0; i-- {
		if events[i].Kind == kvevent.Cleared {
			return events[i:]
		}
	}
	return events
}

// slabBlocks is the number of blocks that a slab allocates at a time.
const slabBlocks = 1024

// slab copies events without an allocation for each.
type slab struct {
	stored  []kvevent.StoredBlock
	removed []kv.SequenceHash
	// grows: the slab keeps all memory until reset, and then reuses it. Other slabs drop
	// their memory when it is full; the copies in it keep it alive.
	grows bool
}

// clone returns a copy of e that shares no memory with e.
func (s *slab) clone(e *kvevent.RouterEvent) kvevent.RouterEvent {
	c := *e
	c.Blocks, c.Removed = carve(&s.stored, e.Blocks, s.grows), carve(&s.removed, e.Removed, s.grows)
	return c
}

// reset makes the memory of all copies free for new ones.
func (s *slab) reset() { s.stored, s.removed = s.stored[:0], s.removed[:0] }

// carve returns a copy of list in memory of *free, so that many short lists cost one allocation.
// When *free is full carve replaces it by new memory, larger if grows is set. Older copies stay in
// the old memory. A list of more than slabBlocks elements gets memory of its own.
func carve[T any](free *[]T, list []T, grows bool) []T {
	n := len(*free)
	switch {
	case len(list) == 0:
		return nil
	case grows: // append below enlarges the memory
	case len(list) > slabBlocks:
		return slices.Clone(list)
	case cap(*free)-n < len(list):
		*free, n = make([]T, 0, slabBlocks), 0
	}
	*free = append(*free, list...)
	return (*free)[n:len(*free):len(*free)]
}
