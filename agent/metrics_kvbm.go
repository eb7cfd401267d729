package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// kvbmCollector shows a Stats snapshot under the names of KVBM's metrics, for existing
// dashboards. docs/operations.md lists where the meaning differs.
type kvbmCollector struct {
	stats func() Stats
	// bypass says that there is no host tier: blocks go between device and disk.
	bypass bool
}

// kvbmHandler serves KVBM's metrics.
func kvbmHandler(stats func() Stats, bypass bool) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&kvbmCollector{stats, bypass})
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *kvbmCollector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *kvbmCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	stored, written := s.Retired.Committed, s.Retired.WriteBehind
	for i := range s.Pools {
		stored += s.Pools[i].Committed
		written += s.Pools[i].WriteBehind
	}
	values := config.MetricValues{
		OnboardHostToDevice: s.Cache.OnboardedHost, OnboardDiskToDevice: s.Cache.OnboardedDisk, MatchedTokens: s.Cache.MatchedTokens,
		HostCacheHitRate: s.Cache.HostHitRate, DiskCacheHitRate: s.Cache.DiskHitRate,
	}
	values.SetOffloads(stored, written, c.bypass)
	metric.Each(&values, func(f *metric.Field, v float64) {
		kind := prometheus.CounterValue
		if f.Kind == metric.Gauge {
			kind = prometheus.GaugeValue
		}
		// KVBM's counters have no "_total" in their names.
		desc := prometheus.NewDesc(config.MetricsNamespaceName+"_"+f.Name, f.Help, nil, nil)
		ch <- prometheus.MustNewConstMetric(desc, kind, v)
	})
}
