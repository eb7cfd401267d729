package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/internal/metric/prom"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Overhead has the durations of a decision's parts and the hits of the shared cache.
// Each has two names, Blockyard's and Dynamo's. Dynamo's dashboards need the second, and its
// durations are in milliseconds.
type Overhead struct {
	blockHashing, sequenceHashing, findMatches, sharedCache, scheduling, total duration
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

// duration observes a duration in seconds, and in milliseconds under older names.
type duration struct {
	seconds prometheus.Histogram
	millis  histograms
}

func (d *duration) observe(seconds float64) {
	d.seconds.Observe(seconds)
	d.millis.observe(seconds * 1e3)
}

// newOverhead returns the metrics of a decision's parts, registered with to under the
// names of Blockyard and of Dynamo.
func newOverhead(to *prometheus.Registry) *Overhead {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		to.MustRegister(h)
		return h
	}
	overhead := func(name, help string, start, factor float64, count int) duration {
		const own, dynamos = "blockyard_router_overhead_", "dynamo_router_overhead_"
		millis := prometheus.ExponentialBuckets(start*1e3, factor, count)
		return duration{histogram(own+name+"_seconds", help+".", prometheus.ExponentialBuckets(start, factor, count)), histograms{
			histogram(own+name+"_ms", prom.Deprecated(own+name+"_seconds"), millis),
			histogram(dynamos+name+"_ms", help+", in ms.", millis),
		}}
	}
	short := func(name, help string) duration { return overhead(name, help, 1e-6, 2, 15) } // 1 µs to 16 ms
	long := func(name, help string) duration { return overhead(name, help, 10e-6, 3, 17) } // 10 µs to 7 min
	component := func(name, help string, buckets []float64) histograms {
		return histograms{histogram("blockyard_router_"+name, help, buckets), histogram("dynamo_component_router_"+name, help, buckets)}
	}
	m := &Overhead{
		blockHashing:    short("block_hashing", "Time to hash a prompt's blocks"),
		sequenceHashing: short("seq_hashing", "Time to hash the blocks that count as active"),
		findMatches:     long("indexer_find_matches", "Time to query the index"),
		sharedCache:     long("shared_cache_query", "Time to query the shared cache"),
		scheduling:      long("scheduling", "Time to choose a worker, including the wait in the queue"),
		total:           long("total", "Time of the whole decision"),
		sharedRate: component("shared_cache_hit_rate", "Share of a prompt's blocks that the shared cache has.",
			prometheus.LinearBuckets(0, 0.05, 21)),
		sharedBeyond: component("shared_cache_beyond_blocks", "Blocks of a prompt in the shared cache beyond the chosen worker's prefix.",
			slices.Insert(prometheus.ExponentialBuckets(1, 2, 15), 0, 0)), // 0, then 1 to 16,384
		modes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blockyard_router_decisions_total",
			Help: "Decisions by score: weights, price, fallback (price without a measure) or none.",
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
	m.blockHashing.observe(t.BlockHashing.Seconds())
	m.sequenceHashing.observe(t.SequenceHashing.Seconds())
	m.findMatches.observe(t.FindMatches.Seconds())
	m.scheduling.observe(t.Scheduling.Seconds())
	m.total.observe(t.Total.Seconds())
	if t.SharedCache > 0 {
		m.sharedCache.observe(t.SharedCache.Seconds())
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
// price, fallback for price without a measure, or none for a selector without costs.
func scoreKind(mode string) string {
	switch {
	case mode == "":
		return "none"
	case mode == schedule.ModeWeights || mode == schedule.ModePrice:
		return mode
	}
	return "fallback"
}
