package residency

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// MaxSinks is how many sinks and followers one stream can have together.
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

// AddSink gives the stream one sink more, the last in order. The sink sees every later
// event; what the stream holds already is for Snapshot, and for Merged.FollowPool. A
// HealthObserver is told the stream's health if that is not exact. The error, which is
// also counted in SinksRefused, says that there are MaxSinks already.
func (s *Stream) AddSink(sink Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx.addSink(sink)
}

func (tx *Tx) addSink(sink Sink) error {
	if err := tx.sinkRoom(); err != nil {
		return err
	}
	tx.Flush()
	tx.sinks = append(tx.sinks, sink)
	if o, ok := sink.(HealthObserver); ok && tx.health != kvevent.HealthExact {
		o.HealthChanged(tx.health)
	}
	return nil
}

// sinkRoom is an error when the stream has MaxSinks sinks and followers.
func (tx *Tx) sinkRoom() error {
	n := len(tx.sinks) + len(tx.followers)
	if n < MaxSinks {
		return nil
	}
	tx.stats.SinksRefused++
	return fmt.Errorf("stream of %s: %d sinks, want at most %d", tx.owner, n+1, MaxSinks)
}

// RemoveSink takes sink away; it is not called any more once RemoveSink has
// returned. Pending changes are flushed to it first. One that the stream does not
// have is no error.
func (s *Stream) RemoveSink(sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.tx.sinks, sink); i >= 0 {
		s.tx.Flush()
		s.tx.sinks = slices.Delete(s.tx.sinks, i, i+1)
	}
}
