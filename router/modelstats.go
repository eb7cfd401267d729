package router

import (
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// ModelStats are the gauges and counters of one model. In all of its structs a uint64 is
// a counter, and other numbers are gauges.
type ModelStats struct {
	Key     feed.ModelKey `metric:"-"`
	Quality feed.Quality
	// Workers are those that were announced or registered.
	Workers  int
	Index    index.Stats
	Requests schedule.Stats
	// Guess is 0 where no decision is remembered, Estimate unless workers are scored by
	// cost.
	Guess    approx.Stats
	Estimate estimate.Stats
	// Unbooked counts requests that AddRequest could not book, Unremembered decisions
	// that are not among the guesses.
	Unbooked, Unremembered uint64
}

// stats is a snapshot.
func (m *Model) stats() ModelStats {
	s := ModelStats{
		Key: m.key, Quality: m.Quality(), Workers: m.current.Load().Workers,
		Index: m.index.Stats(), Requests: m.scheduler.Stats(),
		Unbooked: m.decide.Unbooked(), Unremembered: m.decide.Unremembered(),
	}
	s.Guess, _ = m.decide.GuessStats()
	if m.estimate != nil {
		s.Estimate = m.estimate.Stats()
	}
	return s
}

// stats are those of the open models, and their sum with the counters of retired models.
func (d *Models) stats() (all []ModelStats, sum ModelStats) {
	d.mu.Lock()
	sum = d.retired
	open := d.routes.Load().all // in step with retired under the lock
	d.mu.Unlock()
	for _, m := range open {
		s := m.stats()
		all = append(all, s)
		sum.add(&s)
	}
	return all, sum
}

// add adds the gauges and counters of o to s.
func (s *ModelStats) add(o *ModelStats) { metric.Add(s, o) }

// addCounters adds the counters alone.
func (s *ModelStats) addCounters(o *ModelStats) { metric.AddCounters(s, o) }
