package router

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// collectModels sends what tells models apart. The families without a model label are
// sums over all models.
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
	send("workers", "Workers of a model that requests may be sent to.", gauge, func(s *ModelStats) float64 { return float64(s.Workers) })
	send("active_requests", "Requests booked on a model's workers.", gauge, func(s *ModelStats) float64 { return float64(s.Requests.Load.Requests) })
	send("queue_pending_requests", "Requests that wait for a worker of a model.", gauge, func(s *ModelStats) float64 { return float64(s.Requests.Queue.Pending) })
	send("index_blocks", "Distinct blocks in a model's index.", gauge, func(s *ModelStats) float64 { return float64(s.Index.Blocks) })
	send("index_bytes", "Memory of a model's index, in bytes.", gauge, func(s *ModelStats) float64 { return float64(s.Index.Bytes) })
	send("requests_booked_total", "Requests booked on a model's workers, since the model was opened.", counter, func(s *ModelStats) float64 { return float64(s.Requests.Load.Added) })
}
