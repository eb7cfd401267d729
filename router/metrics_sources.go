package router

import "github.com/prometheus/client_golang/prometheus"

// collectSources sends the transports' own counters.
func (c *statsCollector) collectSources(out chan<- prometheus.Metric) {
	total := prometheus.NewDesc("blockyard_router_source_total", "What a source of events counts itself, such as Dynamo's.", []string{"source", "counter"}, nil)
	now := prometheus.NewDesc("blockyard_router_source", "What a source of events measures itself, such as Dynamo's.", []string{"source", "gauge"}, nil)
	for _, s := range c.router.Sources() {
		for name, v := range s.Counters {
			out <- prometheus.MustNewConstMetric(total, prometheus.CounterValue, float64(v), s.Name, name)
		}
		for name, v := range s.Gauges {
			out <- prometheus.MustNewConstMetric(now, prometheus.GaugeValue, float64(v), s.Name, name)
		}
	}
}
