package router

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/metric/prom"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// prefix begins the name of every metric of the router that is not Dynamo's.
const prefix = "blockyard_router_"

// scrape sends one metric for each field of Stats, and those with labels: of workers, models, load
// reports, transports and estimates.
func (r *Router) scrape(out chan<- prometheus.Metric) {
	s := r.Stats()
	prom.Families(out, prefix, &s)
	r.metrics.Door.Forget(r.presentWorkers())
	r.collectWorkers(out)
	r.collectLoads(out)
	r.collectSources(out)
	collectBackpressure(&s.Requests.Queue, out)
	collectModels(s.Models, out)
	if r.config.Score == config.ScorePrice {
		collectEstimates(r.Measures(), &s.Estimate, out)
	}

	if r.config.Guesses() || s.Guess.Recorded > 0 {
		prom.Families(out, prefix, &s.Guess)
		desc := prometheus.NewDesc(prefix+"guesses_unrecorded_total", "Routing decisions that could not be recorded as predictions.", nil, nil)
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(s.Unremembered))
	}
	if g := r.Registry(); g != nil {
		s := g.Counters()
		prom.Families(out, prefix, &s)
	}
}

// presentWorkers returns the names of the router's workers.
func (r *Router) presentWorkers() map[string]bool {
	present := make(map[string]bool)
	for _, w := range r.Workers() {
		present[w.Worker.String()] = true
	}
	return present
}

// collectBackpressure sends how many requests the queue refused, with the reached limit as
// label. The labels are Dynamo's.
func collectBackpressure(s *queue.Stats, out chan<- prometheus.Metric) {
	desc := prometheus.NewDesc("blockyard_router_queue_backpressure_total", "Requests refused by the full queue.", []string{"reason"}, nil)
	for reason, n := range map[string]uint64{
		"request_limit": s.RejectedRequests, "raw_isl_token_limit": s.RejectedTokens, "cached_token_limit": s.RejectedCachedTokens,
		"allowed_worker_limit": s.RejectedAllowed,
	} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), reason)
	}
}

// collectModels sends the metrics of each model, with its name and block size as labels.
// Metrics without these labels are sums over all models, and Collect sends them.
func collectModels(all []ModelStats, out chan<- prometheus.Metric) {
	labels := []string{"model", "block_size"}
	send := func(name, help string, kind prometheus.ValueType, value func(s *ModelStats) float64) {
		desc := prometheus.NewDesc("blockyard_router_model_"+name, help, labels, nil)
		for i := range all {
			s := &all[i]
			out <- prometheus.MustNewConstMetric(desc, kind, value(s), s.Key.Name, strconv.Itoa(int(s.Key.BlockSize)))
		}
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	send("workers", "Workers of a model that may get requests.", gauge, func(s *ModelStats) float64 { return float64(s.Workers) })
	send("active_requests", "Requests booked on a model's workers.", gauge, func(s *ModelStats) float64 { return float64(s.Requests.Load.Requests) })
	send("queue_pending_requests", "Requests waiting for a worker of a model.", gauge, func(s *ModelStats) float64 { return float64(s.Requests.Queue.Pending) })
	send("index_blocks", "Distinct blocks in a model's index.", gauge, func(s *ModelStats) float64 { return float64(s.Index.Blocks) })
	send("index_bytes", "Memory of a model's index, in bytes.", gauge, func(s *ModelStats) float64 { return float64(s.Index.Bytes) })
	send("requests_booked_total", "Requests booked on a model's workers, since the model was opened.", counter, func(s *ModelStats) float64 { return float64(s.Requests.Load.Added) })
}

// collectWorkers sends the load of each worker's booked requests: active blocks and prompt
// tokens to compute. A worker may serve several models, so the loads are summed. The names
// and labels are those of Dynamo's frontend, for its dashboards.
func (r *Router) collectWorkers(out chan<- prometheus.Metric) {
	labels := []string{"worker_id", "dp_rank", "worker_type"}
	blocks := prometheus.NewDesc("dynamo_frontend_worker_active_decode_blocks", "Prompt blocks of the requests booked on a worker. Shared prefixes count once.", labels, nil)
	tokens := prometheus.NewDesc("dynamo_frontend_worker_active_prefill_tokens", "Prompt tokens not computed yet of the requests booked on a worker.", labels, nil)
	sums := make(map[kv.Worker]schedule.PotentialLoad)
	for _, m := range r.models.all() {
		for _, l := range m.scheduler.Loads(nil) {
			sum := sums[l.Worker]
			sum.PrefillTokens += l.PrefillTokens
			sum.DecodeBlocks += l.DecodeBlocks
			sums[l.Worker] = sum
		}
	}
	for w, l := range sums {
		values := []string{strconv.FormatUint(uint64(w.ID), 10), strconv.FormatUint(uint64(w.Rank), 10), r.config.WorkerType}
		out <- prometheus.MustNewConstMetric(blocks, prometheus.GaugeValue, float64(l.DecodeBlocks), values...)
		out <- prometheus.MustNewConstMetric(tokens, prometheus.GaugeValue, float64(l.PrefillTokens), values...)
	}
}

// collectEstimates sends what the estimator has learned of each worker: rates with their ages,
// and the fixed cost of a request. s are the sums of the estimators' gauges and counters.
func collectEstimates(measures []estimate.WorkerMeasures, s *estimate.Stats, out chan<- prometheus.Metric) {
	rate := prometheus.NewDesc("blockyard_router_measured_rate",
		"Measured rate of a worker or its pool per second of busy time: prefill_tokens, copy_bytes, disk_bytes. Source model is the median of the model's workers.",
		[]string{"worker", "measure", "source"}, nil)
	age := prometheus.NewDesc("blockyard_router_measured_age_seconds", "Age of the last sample of a worker's measured rate.", []string{"worker", "measure"}, nil)
	fixedCost := prometheus.NewDesc("blockyard_router_measured_request_seconds", "Measured fixed cost of a request on a worker, in seconds.", []string{"worker"}, nil)
	for _, w := range measures {
		name := w.Worker.String()
		if w.RequestSeconds > 0 {
			out <- prometheus.MustNewConstMetric(fixedCost, prometheus.GaugeValue, w.RequestSeconds, name)
		}
		for _, m := range []struct {
			name string
			estimate.Measure
		}{{"prefill_tokens", w.PrefillTokens}, {"copy_bytes", w.CopyBytes}, {"disk_bytes", w.DiskBytes}} {
			if m.Source == estimate.SourceNone {
				continue
			}
			out <- prometheus.MustNewConstMetric(rate, prometheus.GaugeValue, m.PerSecond, name, m.name, string(m.Source))
			if m.Samples > 0 {
				out <- prometheus.MustNewConstMetric(age, prometheus.GaugeValue, m.AgeSeconds, name, m.name)
			}
		}
	}
	total := prometheus.NewDesc("blockyard_router_estimate_total", "Counters of the estimator of times to first tokens.", []string{"counter"}, nil)
	now := prometheus.NewDesc("blockyard_router_estimate", "Gauges of the estimator of times to first tokens.", []string{"gauge"}, nil)
	prom.Kinds(out, total, now, s)
}

// collectLoads sends a gauge for each number of the last load report of each worker and pool,
// and the age of the report.
func (r *Router) collectLoads(out chan<- prometheus.Metric) {
	now := time.Now()
	load := prometheus.NewDesc("blockyard_router_load", "Numbers of the last load report of a worker or pool, by kind.", []string{"owner", "kind"}, nil)
	age := prometheus.NewDesc("blockyard_router_load_age_seconds", "Age of the last load report of a worker or pool.", []string{"owner"}, nil)
	for o, l := range r.Loads() {
		out <- prometheus.MustNewConstMetric(age, prometheus.GaugeValue, now.Sub(l.At).Seconds(), o.String())
		for kind, v := range l.Numbers() {
			out <- prometheus.MustNewConstMetric(load, prometheus.GaugeValue, float64(v), o.String(), kind)
		}
	}
}

// collectSources sends the own metrics of the sources of events that the transport combines.
func (r *Router) collectSources(out chan<- prometheus.Metric) {
	total := prometheus.NewDesc("blockyard_router_source_total", "Counters of a source of events, such as Dynamo's.", []string{"source", "counter"}, nil)
	now := prometheus.NewDesc("blockyard_router_source", "Gauges of a source of events, such as Dynamo's.", []string{"source", "gauge"}, nil)
	for _, s := range r.Sources() {
		for name, v := range s.Counters {
			out <- prometheus.MustNewConstMetric(total, prometheus.CounterValue, float64(v), s.Name, name)
		}
		for name, v := range s.Gauges {
			out <- prometheus.MustNewConstMetric(now, prometheus.GaugeValue, float64(v), s.Name, name)
		}
	}
}
