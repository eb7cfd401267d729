package residency

import (
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxFollowItems bounds the events, and the blocks in them, that wait for a follower:
// about 6 MiB. Followers of one stream share them.
const maxFollowItems = 1 << 18

// eventBatch is a copy of the events of one flush. items counts events and blocks. A batch
// never changes, so followers share it.
type eventBatch struct {
	events []kvevent.RouterEvent
	items  int
}

// follower copies the blocks of a pool's stream into a Merged, and then applies every
// later event, in its own goroutine. The stream never waits for the follower. Under the
// stream's lock the follower copies one chunk of the table, or looks up as many blocks.
//
// A follower has three phases:
//
//   - adopt: it copies the stream's table into the Merged, chunk by chunk. Before each
//     chunk it applies the events that precede the copy.
//   - live: it applies the stream's events.
//   - sweep: it removes from the Merged the blocks that the stream no longer holds. A
//     sweep begins when the queue was full, because that drops the queue. Another adopt
//     phase follows. From the overflow to the end of that phase the Merged is degraded.
type follower struct {
	merged *Merged
	stream *Stream
	wake   chan struct{} // room for one: something is queued
	stop   chan struct{}
	ended  chan struct{}
	joined chan struct{} // closed when the first adopt phase is done
	limit  int           // bounds items: maxFollowItems, less in tests

	mu         sync.Mutex
	queue      []*eventBatch
	items      int
	overflowed bool // the queue was full; later events are missing

	// The goroutine's state.
	phase followPhase
	// The phase copies or checks the slots from nextSlot to endSlot-1: of the Merged's table in a
	// sweep, else of the stream's.
	nextSlot, endSlot uint32
	grown             bool // the adopt phase has added blocks to the Merged
	chunk             dense.Chunk[Block]
	poolBlocks        []poolBlock // a buffer of sweep
}

type followPhase uint8

const (
	phaseAdopt followPhase = iota
	phaseSweep
	phaseLive
)

func newFollower(m *Merged, s *Stream) *follower {
	return &follower{
		merged: m, stream: s, wake: make(chan struct{}, 1), limit: maxFollowItems,
		stop: make(chan struct{}), ended: make(chan struct{}), joined: make(chan struct{}),
	}
}

// follow starts a follower that copies the blocks and later events of s into m. The error
// says that s has MaxSinks already.
func (s *Stream) follow(m *Merged) (*follower, error) {
	f := newFollower(m, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.tx.checkSinkLimit(); err != nil {
		return nil, err
	}
	s.tx.followers = append(s.tx.followers, f)
	f.endSlot = s.tx.table.Slots()
	go f.run()
	return f, nil
}

// detach ends the follower, and waits for its goroutine.
func (f *follower) detach() {
	f.stream.Update(func(tx *Tx) {
		tx.followers = slices.DeleteFunc(tx.followers, func(other *follower) bool { return other == f })
	})
	close(f.stop)
	<-f.ended
}

// queueForFollowers copies the events of the current flush once, and queues the copy for
// every follower. tx.events borrow from tx.stored and tx.removed, which the next flush reuses. A
// follower whose queue is full loses events, and repairs that itself.
func (tx *Tx) queueForFollowers() {
	if len(tx.followers) == 0 {
		return
	}
	b := &eventBatch{events: slices.Clone(tx.events), items: len(tx.events) + len(tx.stored) + len(tx.removed)}
	stored, removed := slices.Clone(tx.stored), slices.Clone(tx.removed)
	for i, c := range tx.pending {
		switch c.kind {
		case kvevent.Stored:
			b.events[i].Blocks = stored[c.from : c.from+c.n]
		case kvevent.Removed:
			b.events[i].Removed = removed[c.from : c.from+c.n]
		}
	}
	for _, f := range tx.followers {
		if !f.offer(b) {
			tx.stats.FollowersCut++
		}
	}
}

// offer queues a batch of the pool's events for the follower's goroutine. It returns false when
// the queue was full, for the caller to count. Then it drops the queue and the batch, and drops
// later batches until the follower has taken note: a sweep makes up for all of them.
func (f *follower) offer(b *eventBatch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.overflowed { // counted already
		return true
	}
	full := f.items+b.items > f.limit && len(f.queue) > 0 // one batch always fits
	if full {
		f.queue, f.items, f.overflowed = nil, 0, true
	} else {
		f.queue = append(f.queue, b)
		f.items += b.items
	}
	select {
	case f.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
	return !full
}

// take empties the queue and returns its batches. lost reports that offer has dropped
// others.
func (f *follower) take() (batches []*eventBatch, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	batches, lost = f.queue, f.overflowed
	f.queue, f.items, f.overflowed = nil, 0, false
	return batches, lost
}

// run is the follower's goroutine: it copies a pool's blocks and events into a Merged. It works
// until nothing is left to do, and then waits for events (wake) or for detach (stop).
func (f *follower) run() {
	defer close(f.ended)
	for {
		select {
		case <-f.stop: // also between two steps: there may always be more to do
			return
		default:
		}
		if f.step() {
			continue
		}
		select {
		case <-f.wake:
		case <-f.stop:
			return
		}
	}
}

// step does the next piece of work in the follower's phase: check one chunk of the Merged after a
// loss (sweep), copy one chunk of the pool's table (adopt), or apply the queued events. It
// returns false when there is nothing to do.
func (f *follower) step() bool {
	switch f.phase {
	case phaseSweep:
		f.sweep()
		return true
	case phaseAdopt:
		f.adopt()
		return true
	default:
		batches, lost := f.take()
		sweeping := !f.apply(batches, lost)
		return sweeping || len(batches) > 0
	}
}

// apply applies batches of the pool's events to the Merged. If batches are missing (lost), it
// starts a sweep of the Merged and returns false.
func (f *follower) apply(batches []*eventBatch, lost bool) bool {
	for _, b := range batches {
		f.merged.pool.Publish(b.events)
	}
	if !lost {
		return true
	}
	f.phase, f.nextSlot, f.endSlot = phaseSweep, 0, f.merged.setStale(true)
	return false
}

// adopt copies the next chunk of the pool's table into the Merged. First it applies the events
// that the pool's stream published before the copy: they are older than the chunk. Without a
// further chunk the adopt phase ends.
func (f *follower) adopt() {
	var copied, lost bool
	var batches []*eventBatch
	f.stream.Update(func(tx *Tx) {
		copied = f.nextSlot < f.endSlot && tx.table.CopyChunk(&f.chunk, f.nextSlot)
		batches, lost = f.take()
	})
	switch {
	case !f.apply(batches, lost): // apply started a sweep; the chunk is dropped
	case copied:
		f.grown = f.merged.adopt(&f.chunk) || f.grown
		f.nextSlot += dense.ChunkSize
	default:
		f.adopted()
	}
}

// adopted ends the adopt phase, in which the follower copies the pool's table into the Merged.
// The Merged now holds the blocks that the pool held at one moment. Sinks hear of blocks that
// came in without events.
func (f *follower) adopted() {
	f.phase = phaseLive
	f.merged.setStale(false)
	if f.grown {
		f.merged.tellStateJoined()
	}
	f.grown = false
	select {
	case <-f.joined: // closed after the first adopt phase
	default:
		close(f.joined)
	}
}

// sweep repairs the next chunk of the Merged after the queue of the pool's events has overflowed
// and events are lost: it removes the blocks that the pool no longer holds. After the last chunk
// another adopt phase copies the blocks that the Merged lacks from the pool's stream.
func (f *follower) sweep() {
	next := min(f.nextSlot+dense.ChunkSize, f.endSlot)
	f.poolBlocks = f.merged.appendPoolBlocks(f.poolBlocks[:0], f.nextSlot, next)
	var gone []poolBlock
	var batches []*eventBatch
	var lost bool
	var poolSlots uint32 // the next adopt phase copies as many
	f.stream.Update(func(tx *Tx) {
		gone = slices.DeleteFunc(f.poolBlocks, func(b poolBlock) bool {
			slot, ok := tx.Find(b.hash)
			return ok && tx.Block(slot).Refs.Of(b.tier) > 0
		})
		batches, lost = f.take() // the events up to this look at the table
		poolSlots = tx.table.Slots()
	})
	if !f.apply(batches, lost) { // the queue overflowed again: apply has restarted the sweep
		return
	}
	var events []kvevent.RouterEvent
	for i := range gone {
		events = append(events, gone[i].removed())
	}
	f.merged.pool.Publish(events)
	if f.nextSlot = next; f.nextSlot == f.endSlot {
		f.phase, f.nextSlot, f.endSlot = phaseAdopt, 0, poolSlots
	}
}
