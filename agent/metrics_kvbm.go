package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
)

// kvbmCollector shows a Stats snapshot under the names of KVBM's metrics, for
// dashboards that exist. docs/operations.md says where they mean something else
// here.
type kvbmCollector struct {
	stats func() Stats
	// bypass: blocks go between device and disk, the host tier being none.
	bypass bool
}

// kvbmHandler serves KVBM's metrics, and nothing else.
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
	send := func(name config.Metric, help string, t prometheus.ValueType, v float64) {
		desc := prometheus.NewDesc(config.MetricsNamespaceName+"_"+string(name), help, nil, nil)
		ch <- prometheus.MustNewConstMetric(desc, t, v)
	}
	count := func(name config.Metric, help string, v uint64) {
		send(name, help, prometheus.CounterValue, float64(v))
	}
	committed, written := s.Retired.Committed, s.Retired.WriteBehind
	for i := range s.Pools {
		committed += s.Pools[i].Committed
		written += s.Pools[i].WriteBehind
	}
	var toHost, hostToDisk, toDisk uint64
	if c.bypass {
		toDisk = written
	} else {
		toHost, hostToDisk = committed, written
	}
	count(config.OffloadDeviceToHost, "Blocks copied from device to host memory.", toHost)
	count(config.OffloadHostToDisk, "Blocks copied from host memory to disk.", hostToDisk)
	count(config.OffloadDeviceToDisk, "Blocks copied from device to disk, without a host tier.", toDisk)
	count(config.OffloadDeviceToObject, "Blocks copied from device to an object store: there is none.", 0)
	count(config.OnboardHostToDevice, "Blocks that workers were told to copy from host memory to device.", s.Cache.OnboardedHost)
	count(config.OnboardDiskToDevice, "Blocks found on disk that workers were told to copy to device.", s.Cache.OnboardedDisk)
	count(config.OnboardObjectToDevice, "Blocks copied from an object store to device: there is none.", 0)
	count(config.MatchedTokens, "Tokens that lookups found, each once for its request.", s.Cache.MatchedTokens)
	count(config.ObjectReadFailures, "Failed reads of an object store: there is none.", 0)
	count(config.ObjectWriteFailures, "Failed writes of an object store: there is none.", 0)
	send(config.HostCacheHitRate, "Share of the blocks asked for that host memory had, over the last requests.", prometheus.GaugeValue, s.Cache.HostHitRate)
	send(config.DiskCacheHitRate, "Share of the blocks asked for that the disk had, over the last requests.", prometheus.GaugeValue, s.Cache.DiskHitRate)
	send(config.ObjectCacheHitRate, "Share of the blocks asked for that an object store had: there is none.", prometheus.GaugeValue, 0)
}
