package residency

import (
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxFollowItems bounds the events, and the blocks in them, that wait for a follower:
// about 6 MiB. Followers of one stream share them.
const maxFollowItems = 1 << 18

// eventBatch is a copy of what a stream published at once. It never changes.
type eventBatch struct {
	events []kvevent.RouterEvent
	items  int
}

// follower brings a Merged the blocks of its pool's stream, and then every event, in a
// goroutine of its own. The stream never waits for it: under the stream's lock the
// follower copies one chunk of the table, or looks up as many blocks.
//
// A follower begins with an adoption. It copies the stream's table into the Merged,
// chunk after chunk, each behind the events that precede the copy. Later changes come
// as events. A follower whose queue is full loses the queue. It then sweeps: it removes
// from the Merged the blocks that the stream holds no more. Then it adopts once more.
// Until the end of that adoption the Merged is degraded.
type follower struct {
	merged *Merged
	stream *Stream
	wake   chan struct{} // room for one: something is queued
	stop   chan struct{}
	ended  chan struct{}
	joined chan struct{} // closed when the first adoption is done
	limit  int           // maxFollowItems

	mu    sync.Mutex
	queue []*eventBatch
	items int
	lost  bool // the queue was full; later events are missing

	// The goroutine's state.
	phase   followPhase
	at, end uint32 // slots: of the Merged's table in a sweep, of the stream's in an adoption
	grown   bool   // the adoption added blocks
	chunk   dense.Chunk[Block]
	blocks  []pair
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

// follow begins to bring m what s holds.
func (s *Stream) follow(m *Merged) (*follower, error) {
	f := newFollower(m, s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.tx.sinkRoom(); err != nil {
		return nil, err
	}
	s.tx.followers = append(s.tx.followers, f)
	f.end = s.tx.table.Slots()
	go f.run()
	return f, nil
}

// leave ends the follower, and waits for its goroutine.
func (f *follower) leave() {
	f.stream.Update(func(tx *Tx) {
		tx.followers = slices.DeleteFunc(tx.followers, func(other *follower) bool { return other == f })
	})
	close(f.stop)
	<-f.ended
}

// tellFollowers queues one copy of the events that were just made, for all followers.
func (tx *Tx) tellFollowers() {
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

// offer queues a batch. False means that the queue was full, and is lost.
func (f *follower) offer(b *eventBatch) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost {
		return true
	}
	full := f.items+b.items > f.limit && len(f.queue) > 0
	if full {
		f.queue, f.items, f.lost = nil, 0, true
	} else {
		f.queue = append(f.queue, b)
		f.items += b.items
	}
	select {
	case f.wake <- struct{}{}:
	default: // a wake is pending
	}
	return !full
}

// take empties the queue. lost means that batches are missing.
func (f *follower) take() (batches []*eventBatch, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	batches, lost = f.queue, f.lost
	f.queue, f.items, f.lost = nil, 0, false
	return batches, lost
}

func (f *follower) run() {
	defer close(f.ended)
	for {
		select {
		case <-f.stop:
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

// step does a bounded piece of work. False means that there is none.
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
		return !f.apply(batches, lost) || len(batches) > 0
	}
}

// apply brings the Merged batches. False means that others are missing; a sweep begins.
func (f *follower) apply(batches []*eventBatch, lost bool) bool {
	for _, b := range batches {
		f.merged.pool.Publish(b.events)
	}
	if !lost {
		return true
	}
	f.phase, f.at, f.end = phaseSweep, 0, f.merged.setStale(true)
	return false
}

// adopt copies the next chunk of the stream's table into the Merged, or ends the adoption
// after the last one. Events that the stream published before the copy are applied first.
func (f *follower) adopt() {
	var copied, lost bool
	var batches []*eventBatch
	f.stream.Update(func(tx *Tx) {
		copied = f.at < f.end && tx.table.CopyChunk(&f.chunk, f.at)
		batches, lost = f.take()
	})
	switch {
	case !f.apply(batches, lost): // a sweep begins instead
	case copied:
		f.grown = f.merged.adopt(&f.chunk) || f.grown
		f.at += dense.ChunkSize
	default:
		f.adopted()
	}
}

// adopted ends an adoption. The Merged then holds what the stream held at one moment.
func (f *follower) adopted() {
	f.phase = phaseLive
	f.merged.setStale(false)
	if f.grown {
		f.merged.grown()
	}
	f.grown = false
	select {
	case <-f.joined:
	default:
		close(f.joined)
	}
}

// sweep removes from a chunk of the Merged the blocks that the stream holds no more.
func (f *follower) sweep() {
	next := min(f.at+dense.ChunkSize, f.end)
	f.blocks = f.merged.appendPooled(f.blocks[:0], f.at, next)
	var gone []pair
	var batches []*eventBatch
	var lost bool
	var end uint32
	f.stream.Update(func(tx *Tx) {
		gone = slices.DeleteFunc(f.blocks, func(b pair) bool {
			slot, ok := tx.Find(b.hash)
			return ok && tx.Block(slot).Refs.Of(b.tier) > 0
		})
		batches, lost = f.take()
		end = tx.table.Slots()
	})
	if !f.apply(batches, lost) {
		return
	}
	var events []kvevent.RouterEvent
	for _, b := range gone {
		events = append(events, kvevent.RouterEvent{Kind: kvevent.Removed, Tier: b.tier, Removed: []kv.SequenceHash{b.hash}})
	}
	f.merged.pool.Publish(events)
	if f.at = next; f.at == f.end {
		f.phase, f.at, f.end = phaseAdopt, 0, end
	}
}
