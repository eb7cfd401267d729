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
// nil, is called under the stream's lock with everything that is resident, as
// Snapshot returns it, and the id of the last event that this includes, before
// the sink's first Publish; the sink then sees every later event. A HealthObserver
// is told the stream's health if that is not exact. The stream stands still while
// the snapshot is made, about 0.15 s per million blocks. The error, which is also counted in
// SinksRefused, says that there are MaxSinks already.
func (s *Stream) AddSink(sink Sink, begin func(snapshot []kvevent.RouterEvent, last uint64)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sinks) >= MaxSinks {
		s.stats.SinksRefused++
		return fmt.Errorf("stream of %s: %d sinks, want at most %d", s.owner, len(s.sinks)+1, MaxSinks)
	}
	s.flushLocked()
	if begin != nil {
		begin(snapshotEvents(s.owner, &s.table), s.lastID)
	}
	s.sinks = append(s.sinks, sink)
	if o, ok := sink.(HealthObserver); ok && s.health != kvevent.HealthExact {
		o.HealthChanged(s.health)
	}
	return nil
}

// RemoveSink takes sink away; it is not called any more once RemoveSink has
// returned. Pending changes are flushed to it first. One that the stream does not
// have is no error.
func (s *Stream) RemoveSink(sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.sinks, sink)
	if i < 0 {
		return
	}
	s.flushLocked()
	s.sinks = slices.Delete(s.sinks, i, i+1)
}
