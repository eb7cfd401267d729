package router

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collectLoads sends the last load reports: for each owner one gauge of each number,
// and the report's age.
func (c *statsCollector) collectLoads(out chan<- prometheus.Metric) {
	now := time.Now()
	load := prometheus.NewDesc("blockyard_router_load", "Last load report of a worker or pool, by kind of number.", []string{"owner", "kind"}, nil)
	age := prometheus.NewDesc("blockyard_router_load_age_seconds", "Age of the last load report of a worker or pool.", []string{"owner"}, nil)
	for o, l := range c.router.Loads() {
		out <- prometheus.MustNewConstMetric(age, prometheus.GaugeValue, now.Sub(l.At).Seconds(), o.String())
		for kind, v := range l.Numbers() {
			out <- prometheus.MustNewConstMetric(load, prometheus.GaugeValue, float64(v), o.String(), kind)
		}
	}
}
