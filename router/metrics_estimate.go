package router

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/internal/metric/prom"
	"github.com/blockyard-ai/blockyard/router/estimate"
)

// collectEstimates sends what was learned of each worker, with where it comes from, and
// what the estimators count.
func collectEstimates(measures []estimate.WorkerMeasures, s *estimate.Stats, out chan<- prometheus.Metric) {
	rate := prometheus.NewDesc("blockyard_router_measured_rate",
		"What a worker or its pool was measured to do in a second of busy time: prefill_tokens, copy_bytes, disk_bytes. Of source model: the median of the others stands in.",
		[]string{"worker", "measure", "source"}, nil)
	age := prometheus.NewDesc("blockyard_router_measured_age_seconds", "Age of the last sample of a worker's measured rate.", []string{"worker", "measure"}, nil)
	each := prometheus.NewDesc("blockyard_router_measured_request_seconds", "What every request of a worker was measured to cost besides its tokens.", []string{"worker"}, nil)
	for _, w := range measures {
		name := w.Worker.String()
		if w.RequestSeconds > 0 {
			out <- prometheus.MustNewConstMetric(each, prometheus.GaugeValue, w.RequestSeconds, name)
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
	total := prometheus.NewDesc("blockyard_router_estimate_total", "What the estimator of times to first tokens counts.", []string{"counter"}, nil)
	now := prometheus.NewDesc("blockyard_router_estimate", "What the estimator of times to first tokens knows of now.", []string{"gauge"}, nil)
	prom.Kinds(out, total, now, s)
}
