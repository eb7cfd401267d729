package replica

import (
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/router/load"
)

const (
	// maxQueued and maxQueuedBlocks bound the changes that wait to be sent, and the blocks of their
	// prompts. Beyond them all are dropped, and other routers read the bookings again.
	maxQueued       = 1 << 16
	maxQueuedBlocks = 1 << 22
)

// Journal queues the changes of one model's own bookings for the other routers. It implements
// load.Journal: the account calls it under the scheduler's lock.
type Journal struct {
	wake chan<- struct{}

	mu     sync.Mutex
	queue  []change
	blocks int // of the prompts in queue
	// number is that of the last message with changes.
	number uint64
	// live has the own bookings, and digest that of their numbers.
	live    map[uint64]struct{}
	digest  uint64
	dropped uint64
}

var _ load.Journal = (*Journal)(nil)

func newJournal(wake chan<- struct{}) *Journal {
	return &Journal{wake: wake, live: make(map[uint64]struct{})}
}

// Booked implements load.Journal.
func (j *Journal) Booked(b *load.Booking) {
	c := change{booked, *b}
	c.Sequence = slices.Clone(b.Sequence[:min(len(b.Sequence), maxSequence)])
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live[b.Number] = struct{}{}
	j.digest ^= mixed(b.Number)
	j.push(c)
}

// Progressed implements load.Journal.
func (j *Journal) Progressed(number uint64, p load.Progress) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.push(change{progressed, load.Booking{Number: number, Progress: p}})
}

// Ended implements load.Journal.
func (j *Journal) Ended(number uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.live, number)
	j.digest ^= mixed(number)
	j.push(change{kind: ended, Booking: load.Booking{Number: number}})
}

// push queues a change and wakes the sender. The caller holds j.mu.
func (j *Journal) push(c change) {
	if len(j.queue) >= maxQueued || j.blocks+len(c.Sequence) > maxQueuedBlocks {
		j.dropped += uint64(len(j.queue))
		j.queue, j.blocks = nil, 0
		j.number++ // other routers find a message missing
	}
	j.queue = append(j.queue, c)
	j.blocks += len(c.Sequence)
	if len(j.queue) == 1 {
		select {
		case j.wake <- struct{}{}:
		default:
		}
	}
}

// take removes the changes of the next messages from the queue and returns the numbered messages:
// bookings and ends in one, progress in the other, which goes second. A progress can so follow the end
// of its own booking; receivers ignore it then. more is true when changes are left.
func (j *Journal) take() (bookings, progress message, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, bytes := 0, 0
	for n < len(j.queue) && n < maxChanges && bytes < maxMessage {
		bytes += bookingBytes + len(j.queue[n].ID) + 8*len(j.queue[n].Sequence)
		n++
	}
	for i := range j.queue[:n] {
		c := &j.queue[i]
		j.blocks -= len(c.Sequence)
		if c.kind == progressed {
			progress.changes = append(progress.changes, *c)
		} else {
			bookings.changes = append(bookings.changes, *c)
		}
	}
	if j.queue = slices.Delete(j.queue, 0, n); len(j.queue) == 0 && cap(j.queue) > 4*maxChanges {
		j.queue = nil // gives back the memory of a backlog
	}
	for _, m := range []*message{&bookings, &progress} {
		if len(m.changes) > 0 {
			j.number++
			m.number = j.number
		}
	}
	return bookings, progress, len(j.queue) > 0
}

// state returns the state after the last message. ok is false while changes wait to be sent.
func (j *Journal) state() (s state, number uint64, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return state{count: len(j.live), digest: j.digest}, j.number, len(j.queue) == 0
}

// lastNumber returns the number of the last message with changes.
func (j *Journal) lastNumber() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.number
}

// mixed spreads a number over 64 bits, so that sums of few numbers differ (splitmix64).
func mixed(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
