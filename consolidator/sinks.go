package consolidator

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// MaxSinks is how many sinks one stream can have.
const MaxSinks = 64

// Sink receives a stream's events: in order, with contiguous ids, under the
// stream's lock. It must not block and must not call the stream. The events and
// everything they point to are lent until Publish returns. Sinks are compared
// with ==, so that they must be comparable; pointers are.
type Sink interface {
	Publish(events []kvevent.RouterEvent)
}

// HealthObserver is what a Sink may implement besides, to be told at once when
// the stream's health changes. The rules of Publish hold for it too.
type HealthObserver interface {
	HealthChanged(h kvevent.Health)
}

// AddSink gives the stream one sink more, the last in order. Begin, unless it is
// nil, is called with everything that is resident, as Snapshot returns it, and the
// id of the last event that this includes, before the sink's first Publish; the
// sink then sees every later event. A HealthObserver is told the stream's health if
// that is not exact. The stream's lock is held while the table is copied, but not
// while the copy is put into order, nor in begin; what happens meanwhile is kept
// for the sink, and when that becomes too much, the stream waits for begin to
// return. The error, which is also counted in SinksRefused, says that there are
// MaxSinks already.
func (s *Stream) AddSink(sink Sink, begin func(snapshot []kvevent.RouterEvent, last uint64)) error {
	s.mu.Lock()
	if n := len(s.sinks); n >= MaxSinks {
		s.stats.SinksRefused++
		s.mu.Unlock()
		return fmt.Errorf("stream of %s: %d sinks, want at most %d", s.owner, n+1, MaxSinks)
	}
	s.flushLocked()
	if begin == nil {
		s.sinks = append(s.sinks, sink)
		s.tellHealthLocked(sink)
		s.mu.Unlock()
		return nil
	}
	j := &joining{sink: sink, begun: make(chan struct{}), done: make(chan struct{})}
	s.sinks = append(s.sinks, j)
	table, last := s.table.clone(), s.lastID
	s.mu.Unlock()

	begin(snapshotEvents(s.owner, table), last)
	close(j.begun)

	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(j.done)
	j.catchUp()
	s.sinks[slices.Index(s.sinks, Sink(j))] = sink
	s.tellHealthLocked(sink)
	return nil
}

// tellHealthLocked tells a new sink the stream's health.
func (s *Stream) tellHealthLocked(sink Sink) {
	if o, ok := sink.(HealthObserver); ok && s.health != kvevent.HealthExact {
		o.HealthChanged(s.health)
	}
}

// RemoveSink takes sink away; it is not called any more once RemoveSink has
// returned. Pending changes are flushed to it first. If it is being added, that is
// waited for. One that the stream does not have is no error.
func (s *Stream) RemoveSink(sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isJoining := func(k Sink) bool { j, ok := k.(*joining); return ok && j.sink == sink }
	for i := slices.IndexFunc(s.sinks, isJoining); i >= 0; i = slices.IndexFunc(s.sinks, isJoining) {
		done := s.sinks[i].(*joining).done
		s.mu.Unlock()
		<-done
		s.mu.Lock()
	}
	i := slices.Index(s.sinks, sink)
	if i < 0 {
		return
	}
	s.flushLocked()
	s.sinks = slices.Delete(s.sinks, i, i+1)
}

// maxJoiningItems bounds the events, and the blocks in them, that are kept for one
// sink that joins.
const maxJoiningItems = 1 << 15

// joining stands for a sink whose begin is under way and keeps the events for it.
// Everything but the channels belongs to whoever has the stream's lock.
type joining struct {
	sink  Sink
	begun chan struct{} // closed when begin has returned
	done  chan struct{} // closed when the sink has taken its place

	kept  [][]kvevent.RouterEvent // as they were published: what is published at once is bounded
	items int
	state bool // StateJoined was called
}

// Publish implements Sink.
func (j *joining) Publish(events []kvevent.RouterEvent) {
	for i := range events {
		j.items += 1 + events[i].NumBlocks()
	}
	if j.items > maxJoiningItems {
		<-j.begun // needs no lock of the stream
		j.catchUp()
		j.sink.Publish(events)
		return
	}
	events = slices.Clone(events)
	for i := range events {
		e := &events[i]
		e.Blocks, e.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	}
	j.kept = append(j.kept, events)
}

// StateJoined implements StateObserver.
func (j *joining) StateJoined() { j.state = true }

// catchUp gives the sink what was kept for it; begin must have returned.
func (j *joining) catchUp() {
	for _, events := range j.kept {
		j.sink.Publish(events)
	}
	if o, ok := j.sink.(StateObserver); ok && j.state {
		o.StateJoined()
	}
	j.kept, j.items, j.state = nil, 0, false
}
