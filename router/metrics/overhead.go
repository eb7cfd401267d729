package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Overhead has the durations of a decision's parts and the hits of the shared cache.
// Each has two names, Blockyard's and Dynamo's. Dynamo's dashboards need the second.
type Overhead struct {
	blockHashing, sequenceHashing, findMatches, sharedCache, scheduling, total histograms
	sharedRate, sharedBeyond                                                   histograms
	sharedErrors                                                               []prometheus.Counter
	modes                                                                      *prometheus.CounterVec
}

// histograms observe one value under several names.
type histograms []prometheus.Histogram

func (h histograms) observe(v float64) {
	for _, one := range h {
		one.Observe(v)
	}
}

// newOverhead returns the metrics of a decision's parts, registered with to under the
// names of Blockyard and of Dynamo.
func newOverhead(to *prometheus.Registry) *Overhead {
	histogram := func(name, help string, buckets []float64, prefixes ...string) histograms {
		var all histograms
		for _, prefix := range prefixes {
			h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets})
			to.MustRegister(h)
			all = append(all, h)
		}
		return all
	}
	overhead := func(name, help string, buckets []float64) histograms {
		return histogram(name, help, buckets, "blockyard_router_overhead_", "dynamo_router_overhead_")
	}
	component := func(name, help string, buckets []float64) histograms {
		return histogram(name, help, buckets, "blockyard_router_", "dynamo_component_router_")
	}
	// 1 µs to 16 ms, and 10 µs to 7 min.
	short, long := prometheus.ExponentialBuckets(0.001, 2, 15), prometheus.ExponentialBuckets(0.01, 3, 17)
	m := &Overhead{
		blockHashing:    overhead("block_hashing_ms", "Time to hash a prompt's blocks, in ms.", short),
		sequenceHashing: overhead("seq_hashing_ms", "Time to hash the blocks that count as active, in ms.", short),
		findMatches:     overhead("indexer_find_matches_ms", "Time to query the index, in ms.", long),
		sharedCache:     overhead("shared_cache_query_ms", "Time to query the shared cache, in ms.", long),
		scheduling:      overhead("scheduling_ms", "Time to choose a worker, including the wait in the queue, in ms.", long),
		total:           overhead("total_ms", "Time of the whole decision, in ms.", long),
		sharedRate: component("shared_cache_hit_rate", "Share of a prompt's blocks that the shared cache has.",
			prometheus.LinearBuckets(0, 0.05, 21)),
		sharedBeyond: component("shared_cache_beyond_blocks", "Blocks of a prompt in the shared cache beyond the chosen worker's prefix.",
			slices.Insert(prometheus.ExponentialBuckets(1, 2, 15), 0, 0)), // 0, then 1 to 16,384
		modes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blockyard_router_decisions_total",
			Help: "Decisions by score: weights, cost, fallback (cost without a measure) or none.",
		}, []string{"score"}),
	}
	for _, prefix := range []string{"blockyard_router_overhead_", "dynamo_router_overhead_"} {
		m.sharedErrors = append(m.sharedErrors, prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "shared_cache_errors_total", Help: "Queries to the shared cache without a usable answer."}))
		to.MustRegister(m.sharedErrors[len(m.sharedErrors)-1])
	}
	to.MustRegister(m.modes)
	return m
}

// Decided records the durations of the parts of one decision, the hits of the shared cache,
// and how the worker was chosen.
func (m *Overhead) Decided(d *decide.Decision) {
	t := &d.Timings
	for _, part := range []struct {
		to      histograms
		seconds float64
	}{
		{m.blockHashing, t.BlockHashing.Seconds()}, {m.sequenceHashing, t.SequenceHashing.Seconds()},
		{m.findMatches, t.FindMatches.Seconds()}, {m.scheduling, t.Scheduling.Seconds()}, {m.total, t.Total.Seconds()},
	} {
		part.to.observe(part.seconds * 1e3)
	}
	if t.SharedCache > 0 {
		m.sharedCache.observe(t.SharedCache.Seconds() * 1e3)
	}
	if s := d.Match.Shared; s != nil {
		if d.Blocks > 0 {
			m.sharedRate.observe(float64(s.Hits) / float64(d.Blocks))
		}
		m.sharedBeyond.observe(float64(s.Beyond))
	}
	m.modes.WithLabelValues(scoreKind(d.Match.Mode)).Inc()
}

// SharedCacheFailed counts a query to the shared cache without a usable answer.
func (m *Overhead) SharedCacheFailed() {
	for _, c := range m.sharedErrors {
		c.Inc()
	}
}

// scoreKind returns the label "score" of a decision by its schedule.Result.Mode: weights,
// cost, fallback for cost mode without a measure, or none for a selector without costs.
func scoreKind(mode string) string {
	switch {
	case mode == "":
		return "none"
	case mode == schedule.ModeWeights || mode == schedule.ModeCost:
		return mode
	}
	return "fallback"
}
