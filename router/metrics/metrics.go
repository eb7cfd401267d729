package metrics

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockyard-ai/blockyard/internal/bodies"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/metric/prom"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/feed"
)

// Metrics are the Prometheus metrics of one router. Make one with New.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	failures *prometheus.CounterVec
	latency  prometheus.Histogram
	hitRate  prometheus.Histogram
	hits     *prometheus.CounterVec
	tokens   prometheus.Counter
	// Overhead has the durations of a decision's parts, API the counters of package api, Door the
	// metrics of package frontend.
	Overhead *Overhead
	API      APICounters
	Door     *Door
}

// APICounters count requests that were not served. Package api adds to the counters.
type APICounters struct {
	Bodies                                 bodies.Counters
	NATSBusy, NATSDropped, NATSUndelivered atomic.Uint64
}

// apiStats is a snapshot of APICounters. The metric names follow "blockyard_router_".
type apiStats struct {
	Bodies          bodies.Stats
	NATSBusy        uint64 `metric:"nats_requests_busy" help:"Requests over NATS refused because too many were in progress."`
	NATSDropped     uint64 `metric:"nats_requests_dropped" help:"Requests over NATS dropped from the full queue."`
	NATSUndelivered uint64 `metric:"nats_replies_undelivered" help:"Replies over NATS lost without a connection."`
}

// stats returns a snapshot.
func (c *APICounters) stats() apiStats {
	return apiStats{
		Bodies:   c.Bodies.Stats(),
		NATSBusy: c.NATSBusy.Load(), NATSDropped: c.NATSDropped.Load(), NATSUndelivered: c.NATSUndelivered.Load(),
	}
}

// New returns metrics in a registry of their own, with those of the process. version is the
// program's.
func New(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blockyard_router_requests_total",
			Help: "Requests answered, by method and quality.",
		}, []string{"method", "quality"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blockyard_router_failures_total",
			Help: "Requests answered with an error, by HTTP status.",
		}, []string{"status"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "blockyard_router_decision_seconds",
			Help: "Time to choose a worker: hashing, index and scheduling, without the wait in the queue.",
			// 10 µs to 160 ms.
			Buckets: prometheus.ExponentialBuckets(10e-6, 2, 15),
		}),
		hitRate: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "blockyard_router_kv_hit_rate",
			Help:    "Cached share of the prompt on the chosen worker, weighted by tier.",
			Buckets: prometheus.LinearBuckets(0, 0.05, 21),
		}),
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blockyard_router_hit_blocks_total",
			Help: "Prompt blocks cached on the chosen workers, by tier.",
		}, []string{"tier"}),
		tokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "blockyard_router_input_tokens_total",
			Help: "Prompt tokens of routed requests.",
		}),
	}
	m.Overhead, m.Door = newOverhead(m.registry), newDoor(m.registry)
	m.registry.MustRegister(m.requests, m.failures, m.latency, m.hitRate, m.hits, m.tokens)
	prom.Process(m.registry, version)
	AddStats(m, "blockyard_router_", m.API.stats)
	return m
}

// AddStats adds a metric for each field of a snapshot struct T: package internal/metric tells
// how tags name them. read returns a new snapshot at each scrape. prefix begins every name.
// Two calls must not have one prefix.
func AddStats[T any](m *Metrics, prefix string, read func() T) {
	m.Collect(func(out chan<- prometheus.Metric) {
		s := read()
		prom.Families(out, prefix, &s)
	})
}

// AddStatsBy is AddStats with a label: read returns a snapshot for each value of the label.
func AddStatsBy[T any](m *Metrics, prefix, label string, read func() map[string]T) {
	m.Collect(func(out chan<- prometheus.Metric) {
		for value, s := range read() {
			prom.FamiliesBy(out, prefix, label, value, &s)
		}
	})
}

// AddReasons adds one counter with the label reason. Its values are the names of the counters of a
// snapshot struct T.
func AddReasons[T any](m *Metrics, name, help string, read func() T) {
	family := prometheus.NewDesc(name, help, []string{"reason"}, nil)
	m.Collect(func(out chan<- prometheus.Metric) {
		s := read()
		prom.Kinds(out, family, nil, &s)
	})
}

// Collect adds the metrics that send sends at each scrape.
func (m *Metrics) Collect(send func(out chan<- prometheus.Metric)) {
	m.registry.MustRegister(collector(send))
}

// collector is an unchecked collector: its metrics are what the function sends.
type collector func(out chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(out) }

// Handler serves the metrics over HTTP.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Decided counts a decision that took d, with the part of the prompt that the chosen worker
// has cached. q is the answer's quality. tokens is the length of the prompt, above 0.
func (m *Metrics) Decided(d time.Duration, q feed.Quality, match *decide.Match, tokens int) {
	m.Served("new", q)
	m.latency.Observe(d.Seconds())
	m.tokens.Add(float64(tokens))
	m.hitRate.Observe(min(1, float64(match.CachedTokens)/float64(tokens)))
	for _, t := range kv.Tiers {
		m.hits.WithLabelValues(t.String()).Add(float64(match.Hits[t]))
	}
}

// Served counts an answer.
func (m *Metrics) Served(method string, q feed.Quality) {
	m.requests.WithLabelValues(method, string(q)).Inc()
}

// Failed counts an error by its HTTP status.
func (m *Metrics) Failed(status int) { m.failures.WithLabelValues(strconv.Itoa(status)).Inc() }
