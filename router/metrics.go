package router

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/metric/prom"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Metrics are the router's Prometheus metrics: counters of requests, and Stats at the time of
// the scrape.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	failures *prometheus.CounterVec
	latency  prometheus.Histogram
	hitRate  prometheus.Histogram
	hits     *prometheus.CounterVec
	tokens   prometheus.Counter
	overhead *overheadMetrics
	// API has the counters of package api, Door the metrics of package frontend.
	API  APICounters
	Door *DoorMetrics
}

// APICounters count requests that were not served. Package api adds to the counters.
type APICounters struct {
	BodiesRefused, BodiesSlow              atomic.Uint64
	NATSBusy, NATSDropped, NATSUndelivered atomic.Uint64
}

// apiStats is a snapshot of APICounters. The metric names follow "blockyard_router_".
type apiStats struct {
	BodiesRefused   uint64 `metric:"bodies_refused" help:"Requests refused because the bodies of other requests filled the memory."`
	BodiesSlow      uint64 `metric:"bodies_slow" help:"Uploads ended because they were too slow, or slow while other requests needed the memory."`
	NATSBusy        uint64 `metric:"nats_requests_busy" help:"Requests over NATS refused because too many were in progress."`
	NATSDropped     uint64 `metric:"nats_requests_dropped" help:"Requests over NATS dropped from the full queue."`
	NATSUndelivered uint64 `metric:"nats_replies_undelivered" help:"Replies over NATS lost without a connection."`
}

func (c *APICounters) stats() apiStats {
	return apiStats{
		BodiesRefused: c.BodiesRefused.Load(), BodiesSlow: c.BodiesSlow.Load(),
		NATSBusy: c.NATSBusy.Load(), NATSDropped: c.NATSDropped.Load(), NATSUndelivered: c.NATSUndelivered.Load(),
	}
}

// newMetrics returns the metrics of router r in a registry of their own. A scrape reads the
// Stats of r.
func newMetrics(r *Router) *Metrics {
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
	m.overhead, m.Door = newOverheadMetrics(m.registry), newDoorMetrics(m.registry)
	m.registry.MustRegister(m.requests, m.failures, m.latency, m.hitRate, m.hits, m.tokens,
		&statsCollector{router: r}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// AddStats adds a metric for each field of a snapshot struct T: package internal/metric tells
// how tags name them. read returns a new snapshot at each scrape. prefix begins every name.
// Two calls must not have one prefix.
func AddStats[T any](m *Metrics, prefix string, read func() T) {
	m.registry.MustRegister(collector(func(out chan<- prometheus.Metric) {
		s := read()
		prom.Families(out, prefix, &s)
	}))
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
// has cached. tokens is the length of the prompt, above 0.
func (m *Metrics) Decided(d time.Duration, match *Match, tokens int) {
	m.Served("new", match.Quality)
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

// prefix begins the name of every metric of the router that is not Dynamo's.
const prefix = "blockyard_router_"

// statsCollector turns a snapshot of Stats into metrics.
type statsCollector struct{ router *Router }

var _ prometheus.Collector = (*statsCollector)(nil)

// Describe sends nothing. The registry then does not check the metrics of Collect.
func (c *statsCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It sends one metric for each field of Stats, and
// those with labels: of workers, models, load reports, transports and estimates.
func (c *statsCollector) Collect(out chan<- prometheus.Metric) {
	s := c.router.Stats()
	prom.Families(out, prefix, &s)
	api := c.router.metrics.API.stats()
	prom.Families(out, prefix, &api)
	c.router.metrics.Door.workers.forget(c.presentWorkers(), time.Now())
	c.collectWorkers(out)
	c.collectLoads(out)
	c.collectSources(out)
	collectBackpressure(&s.Requests.Queue, out)
	collectModels(s.Models, out)
	if c.router.config.Score == config.ScoreCost {
		collectEstimates(c.router.Measures(), &s.Estimate, out)
	}

	if c.router.config.Guesses() || s.Guess.Recorded > 0 {
		prom.Families(out, prefix, &s.Guess)
		desc := prometheus.NewDesc(prefix+"guesses_unrecorded_total", "Routing decisions that could not be recorded as predictions.", nil, nil)
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(s.Unremembered))
	}
	if g := c.router.Registry(); g != nil {
		s := g.Counters()
		prom.Families(out, prefix, &s)
	}
}

// presentWorkers returns the names of the router's workers.
func (c *statsCollector) presentWorkers() map[string]bool {
	present := make(map[string]bool)
	for _, w := range c.router.Workers() {
		present[w.Worker.String()] = true
	}
	return present
}

// collectBackpressure sends how many requests the queue refused, with the reached limit as
// label. The labels are Dynamo's.
func collectBackpressure(s *schedule.QueueStats, out chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("blockyard_router_queue_backpressure_total", "Requests refused by the full queue.", []string{"reason"}, nil)
	for reason, n := range map[string]uint64{
		"request_limit": s.RejectedRequests, "raw_isl_token_limit": s.RejectedTokens, "cached_token_limit": s.RejectedCachedTokens,
		"allowed_worker_limit": s.RejectedAllowed,
	} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), reason)
	}
}
