package residency

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// MaxSinks bounds the sinks and followers of one stream together.
const MaxSinks = 64

// Sink receives a stream's events in order, with contiguous ids, under the stream's
// lock. It must not block and must not call the stream. The events and everything they
// point to are lent until Publish returns. Sinks are compared with ==, so use pointers.
type Sink interface {
	Publish(events []kvevent.RouterEvent)
}

// HealthObserver is implemented by sinks that want to know at once when the stream's
// health changes. The rules of Sink hold for it.
type HealthObserver interface {
	HealthChanged(h kvevent.Health)
}

// AddSink adds a sink behind the existing ones. The sink sees every later event, and no event for
// blocks that the stream holds already: see Snapshot and Merged.FollowPool. If the health
// is not exact, AddSink calls the HealthObserver. The error says that the stream has
// MaxSinks already; Stats.SinksRefused counts it.
func (s *Stream) AddSink(sink Sink) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tx.addSink(sink)
}

// addSink adds a sink, which gets the events from now on. A sink that observes health hears of the
// present health first. The error says that the stream has MaxSinks sinks.
func (tx *Tx) addSink(sink Sink) error {
	if err := tx.checkSinkLimit(); err != nil {
		return err
	}
	tx.Flush()
	tx.sinks = append(tx.sinks, sink)
	if o, ok := sink.(HealthObserver); ok && tx.health != kvevent.HealthExact {
		o.HealthChanged(tx.health)
	}
	return nil
}

// checkSinkLimit returns an error when the stream has MaxSinks sinks and followers.
func (tx *Tx) checkSinkLimit() error {
	n := len(tx.sinks) + len(tx.followers)
	if n < MaxSinks {
		return nil
	}
	tx.stats.SinksRefused++
	return fmt.Errorf("stream of %s: %d sinks, want at most %d", tx.owner, n+1, MaxSinks)
}

// RemoveSink flushes pending changes and removes sink. Once it has returned, the stream
// does not call the sink. An unknown sink is no error.
func (s *Stream) RemoveSink(sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.tx.sinks, sink); i >= 0 {
		s.tx.Flush()
		s.tx.sinks = slices.Delete(s.tx.sinks, i, i+1)
	}
}
