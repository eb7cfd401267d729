package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

// collectRequests sends what became of requests: those on the account of workers,
// those that wait, and those that nobody took.
func (c *statsCollector) collectRequests(all *ModelStats, gauge func(name, help string, v int), counter func(name, help string, v uint64)) {
	s := &all.Requests
	gauge("queue_pending_requests", "Requests that wait for a worker.", s.Queue.Pending)
	gauge("queue_pending_isl_tokens", "Prompt tokens of the requests that wait.", s.Queue.Tokens)
	gauge("queue_pending_cached_tokens", "Those of them that some worker has cached.", s.Queue.CachedTokens)
	counter("queue_queued", "Requests that waited or wait.", s.Queue.Queued)
	counter("queue_dispatched", "Requests that waited and got a worker.", s.Queue.Dispatched)
	counter("queue_retracted", "Requests whose callers went while they waited.", s.Queue.Retracted)
	counter("queue_refreshed", "Requests whose overlap was looked up anew after a long wait.", s.Refreshed)
	counter("requests_booked", "Requests booked on a worker.", s.Load.Added)
	counter("requests_freed", "Requests freed.", s.Load.Freed)
	counter("requests_phantom", "Requests whose prefill was taken off because their engine did not have them.", s.Load.Phantoms)
	counter("requests_expired", "Requests that nothing was heard of for too long.", s.Load.Expired)
	counter("requests_unheard", "The part of these that nothing was ever heard of: whoever asked over NATS may have left.", s.Load.Unheard)
	counter("requests_abandoned", "Requests whose worker went away.", s.Load.Abandoned)
	counter("requests_duplicate", "Requests refused because their id was active.", s.Load.Duplicates)
	counter("requests_unbooked", "Requests routed without being booked, because too many were.", s.Unbooked+all.Unbooked)
	counter("requests_rolled_back", "Requests that got a worker when their callers had gone.", s.RolledBack)
	counter("requests_without_endpoints", "Requests that found no worker.", s.NoEndpoints)
	counter("requests_filtered", "Requests that no worker was allowed to take.", s.Filtered)
	counter("requests_overloaded", "Requests that found all their workers overloaded.", s.Overloaded)
	counter("decisions_by_cost", "Decisions by expected milliseconds.", s.Cost.ByCost)
	counter("decisions_fallen_back", "Decisions by weights because a measure was missing.", s.Cost.FellBack)
	counter("used_blocks_unknown", "Reports of used blocks by workers that are not known.", s.UnknownReports)
	counter("bodies_refused", "Requests refused because the bodies of those at hand left no room for theirs.", c.router.bodies.refused.Load())
	counter("bodies_slow", "Uploads ended because they were slow and others needed their room.", c.router.bodies.slow.Load())
	if g := &all.Guess; c.router.config.Guesses() {
		gauge("guessed_blocks", "Pairs of worker and block that routing decisions let expect.", g.Blocks)
		counter("guesses_recorded", "Routing decisions that were remembered.", g.Recorded)
		counter("guesses_expired", "Guessed blocks whose time was over.", g.Expired)
		counter("guesses_pruned", "Guessed blocks that made room for others.", g.Pruned)
		counter("guesses_unrecorded", "Routing decisions that were not remembered.", all.Unremembered)
		counter("guesses_removed", "Guessed blocks whose worker went away.", g.Removed)
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
