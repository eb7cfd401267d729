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

// Metrics is what GET /metrics shows: what the HTTP handlers count themselves,
// and the Stats of the router at the time of the scrape.
type Metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	failures *prometheus.CounterVec
	latency  prometheus.Histogram
	hitRate  prometheus.Histogram
	hits     *prometheus.CounterVec
	tokens   prometheus.Counter
	overhead *overheadMetrics
	// API is for package api.
	API APICounters
}

// APICounters count what became of requests; whoever serves them adds to the counters.
type APICounters struct {
	// BodiesRefused counts requests for whose bodies there was no room, BodiesSlow the
	// uploads that gave theirs up.
	BodiesRefused, BodiesSlow atomic.Uint64
	// NATSBusy counts requests over NATS that found too many others, NATSDropped those
	// without room in the queue, NATSUndelivered replies without a connection.
	NATSBusy, NATSDropped, NATSUndelivered atomic.Uint64
}

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
			Help: "Time to choose a worker: hashing, index, scheduling; without the wait for one.",
			// 10 µs to 160 ms.
			Buckets: prometheus.ExponentialBuckets(10e-6, 2, 15),
		}),
		hitRate: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "blockyard_router_kv_hit_rate",
			Help:    "Cached share of the prompt on the chosen worker, tiers weighted.",
			Buckets: prometheus.LinearBuckets(0, 0.05, 21),
		}),
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blockyard_router_hit_blocks_total",
			Help: "Prompt blocks that the chosen workers had, by tier.",
		}, []string{"tier"}),
		tokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "blockyard_router_input_tokens_total",
			Help: "Prompt tokens of routed requests.",
		}),
	}
	m.overhead = newOverheadMetrics(m.registry)
	m.registry.MustRegister(m.requests, m.failures, m.latency, m.hitRate, m.hits, m.tokens,
		&statsCollector{router: r}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler serves the metrics over HTTP.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Decided counts a decision that took d for a prompt of so many tokens.
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

// Describe sends nothing, which makes this an unchecked collector: its metrics
// are what Collect sends.
func (c *statsCollector) Describe(chan<- *prometheus.Desc) {}

// Collect sends one metric for each field of Stats.
func (c *statsCollector) Collect(out chan<- prometheus.Metric) {
	models, sum := c.router.models.stats()
	s := c.router.statsOf(models, &sum)
	gauge := func(name, help string, v int) {
		desc := prometheus.NewDesc("blockyard_router_"+name, help, nil, nil)
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v))
	}
	counter := func(name, help string, v uint64) {
		desc := prometheus.NewDesc("blockyard_router_"+name+"_total", help, nil, nil)
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(v))
	}
	gauge("workers", "Workers that requests may be sent to.", s.Workers)
	gauge("feeds", "Publishers listened to.", s.Feeds.Feeds)
	gauge("feeds_exact", "Publishers whose blocks are exact.", s.Feeds.ExactFeeds)
	gauge("owners_ambiguous", "Owners that two publishers speak for.", s.Feeds.Ambiguous)
	c.collectLoads(out)
	c.collectSources(out)
	collectBackpressure(&s.Requests.Queue, out)
	collectModels(models, out)
	if c.router.config.Score == config.ScoreCost {
		collectEstimates(c.router.Measures(), &sum.Estimate, out)
	}

	prom.Families(out, prefix, &s.Index)
	prom.Families(out, prefix, &s.Transport)
	c.collectRequests(&sum, out, counter)
	counter("snapshots_saved", "Snapshots of what the router knew that were stored.", s.Snapshots.Saved)
	counter("snapshots_loaded", "Stored snapshots that the router began with.", s.Snapshots.Loaded)
	counter("snapshots_failed", "Snapshots that could not be stored, read or discarded.", s.Snapshots.Failed)
	counter("load_reports", "Load reports taken.", s.Loads.Taken)
	counter("load_reports_undecodable", "Load reports of unknown form.", s.Loads.Undecodable)
	counter("load_reports_refused", "Load reports of more owners than are kept.", s.Loads.Refused)
	n := &c.router.metrics.API
	counter("nats_requests_busy", "Requests over NATS that found too many others.", n.NATSBusy.Load())
	counter("nats_requests_dropped", "Requests over NATS that found no room in the queue.", n.NATSDropped.Load())
	counter("nats_replies_undelivered", "Replies over NATS that found no connection.", n.NATSUndelivered.Load())
	collectFeeds(&s.Feeds, counter)
	if g := c.router.Registry(); g != nil {
		s := g.Counters()
		prom.Families(out, prefix, &s)
	}
}

// collectFeeds calls counter for every counter of the feeds.
func collectFeeds(s *feed.Stats, counter func(name, help string, v uint64)) {
	counter("events_applied", "Events that became part of the index.", s.Applied)
	counter("events_stale", "Events that the index had already.", s.Stale)
	counter("events_unstored", "Events that the index had no room for.", s.Unstored)
	counter("events_foreign", "Events of another owner than their publisher's.", s.Foreign)
	counter("events_overflowed", "Events that did not fit the queue of a recovering feed.", s.Overflowed)
	counter("gaps", "Holes found in the ids of events.", s.Gaps)
	counter("gaps_repaired", "Holes in the ids of events that were closed.", s.GapsRepaired)
	counter("divergences", "Digests that differed with nothing missing.", s.Divergences)
	counter("repairs", "Differences repaired by a dump.", s.DivergencesRepaired)
	counter("queries", "Questions to publishers.", s.Queries)
	counter("query_failures", "Questions without a usable answer.", s.QueryFailures)
	counter("dumps", "Questions answered by everything the owner held.", s.Dumps)
	counter("refills", "Dumps that were asked for because the index had room again.", s.Refills)
	counter("dumps_cut", "Answers that broke off, of which the rest was asked for.", s.CutDumps)
	counter("messages_undecodable", "Messages of unknown form.", s.Undecodable)
	counter("messages_unannounced", "Messages of publishers not announced yet.", s.Unannounced)
	counter("publishers_refused", "Publishers that do not fit in.", s.Refused)
	counter("publishers_fenced", "Announcements of publishers that were over.", s.Fenced)
	counter("announcements_outdated", "Announcements of a stream that were older than the feed timeout.", s.Outdated)
	counter("stalls", "Times that the router took in nothing for a second or more.", s.Stalls)
	counter("owner_contests", "Times that a second publisher of an owner was heard.", s.Contests)
	counter("publishers_unfenced", "Fenced publishers that were forgotten for lack of room.", s.Unfenced)
	counter("owners_expired", "Owners that fell silent.", s.Expired)
	counter("owners_resumed", "Owners of a snapshot whose publishers were heard of again.", s.Resumed)
	counter("owners_gone", "Owners that said goodbye.", s.Gone)
	counter("registered_displaced", "Registered workers that did not fit to a publisher.", s.Displaced)
}

// collectRequests sends what became of requests: those on the account of workers,
// those that wait, and those that nobody took.
func (c *statsCollector) collectRequests(all *ModelStats, out chan<- prometheus.Metric, counter func(name, help string, v uint64)) {
	s := all.Requests
	s.Unbooked += all.Unbooked
	prom.Families(out, prefix, &s)
	counter("bodies_refused", "Requests refused because the bodies of those at hand left no room for theirs.", c.router.metrics.API.BodiesRefused.Load())
	counter("bodies_slow", "Uploads ended because they were slow and others needed their room.", c.router.metrics.API.BodiesSlow.Load())
	if c.router.config.Guesses() {
		prom.Families(out, prefix, &all.Guess)
		counter("guesses_unrecorded", "Routing decisions that could not be recorded as predictions.", all.Unremembered)
	}
}

// collectBackpressure sends the requests that the queue turned away, by the limit that
// was reached.
func collectBackpressure(s *schedule.QueueStats, out chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("blockyard_router_queue_backpressure_total", "Requests that a full queue turned away.", []string{"reason"}, nil)
	for reason, n := range map[string]uint64{
		"request_limit": s.RejectedRequests, "raw_isl_token_limit": s.RejectedTokens, "cached_token_limit": s.RejectedCachedTokens,
		"allowed_worker_limit": s.RejectedAllowed,
	} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), reason)
	}
}
