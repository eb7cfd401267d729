package router

import (
	"reflect"

	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// ModelStats are the gauges and counters of one model. In all of its structs a uint64 is
// a counter, and other numbers are gauges.
type ModelStats struct {
	Key     ModelKey
	Quality Quality
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
		Key: m.key, Quality: m.Quality(), Workers: m.current.Load().workers,
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

// add adds gauges and counters; a gauge that is true or false is true if either is.
func (s *ModelStats) add(o *ModelStats) {
	addNumbers(reflect.ValueOf(s).Elem(), reflect.ValueOf(o).Elem(), true)
}

// addCounters adds the counters alone.
func (s *ModelStats) addCounters(o *ModelStats) {
	addNumbers(reflect.ValueOf(s).Elem(), reflect.ValueOf(o).Elem(), false)
}

func addNumbers(to, from reflect.Value, gauges bool) {
	switch to.Kind() {
	case reflect.Struct:
		if to.Type() == reflect.TypeFor[ModelKey]() {
			return
		}
		for i := range to.NumField() {
			addNumbers(to.Field(i), from.Field(i), gauges)
		}
	case reflect.Uint64:
		to.SetUint(to.Uint() + from.Uint())
	case reflect.Int, reflect.Int64:
		if gauges {
			to.SetInt(to.Int() + from.Int())
		}
	case reflect.Bool:
		if gauges {
			to.SetBool(to.Bool() || from.Bool())
		}
	}
}
