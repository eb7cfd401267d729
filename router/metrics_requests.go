package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/internal/metric/prom"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

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
