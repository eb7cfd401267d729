package kvbm

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// hitSamples is the number of samples that hit rates are computed over: the last minute
// in which blocks were asked for. KVBM computes the rates over requests, which the pool
// does not know.
const hitSamples = 60

// metricsFeed hands a pool's counts to a namespace of metrics, as differences. A nil
// metricsFeed does nothing. It is not safe for concurrent use.
type metricsFeed struct {
	to config.MetricsNamespace
	// pageSize is the number of tokens in a block. bypass is true without a host tier.
	pageSize uint64
	bypass   bool

	last blockmgr.Stats
	sent map[string]float64 // counters, by name
	hits config.HitRates
}

// newMetricsFeed returns the feed of a configuration, nil when the configuration has no metrics.
func newMetricsFeed(cfg *config.Config) (*metricsFeed, error) {
	to := cfg.Metrics
	if to == nil && cfg.Runtime.Metrics != nil {
		var err error
		if to, err = cfg.Runtime.Metrics.Namespace(config.MetricsNamespaceName); err != nil {
			return nil, fmt.Errorf("runtime metrics: namespace %s: %w", config.MetricsNamespaceName, err)
		}
	}
	if to == nil {
		return nil, nil
	}
	f := &metricsFeed{to: to, pageSize: cfg.Model.PageSize, bypass: cfg.HostLayout == nil && cfg.DiskLayout != nil, sent: map[string]float64{}, hits: config.NewHitRates(hitSamples)}
	// Every metric exists from the start, with the value 0.
	metric.Each(new(config.MetricValues), func(m *metric.Field, _ float64) { f.report(m, 0) })
	return f, nil
}

// report sends the value v of one metric: a gauge as it is, a counter as the difference to the value
// sent before, because a MetricsNamespace adds.
func (f *metricsFeed) report(m *metric.Field, v float64) {
	if m.Kind == metric.Gauge {
		f.to.Set(config.Metric(m.Name), v)
		return
	}
	f.to.Add(config.Metric(m.Name), uint64(v-f.sent[m.Name]))
	f.sent[m.Name] = v
}

// send reports what has happened since the last call. A block that a lookup found counts
// as onboarded: the caller copies it to the device.
func (f *metricsFeed) send(now blockmgr.Stats) {
	if f == nil {
		return
	}
	h := config.Hits{Host: now.HostHits - f.last.HostHits, Disk: now.DiskHits - f.last.DiskHits}
	h.Blocks = h.Host + h.Disk + now.Misses - f.last.Misses
	f.hits.Add(h) // an idle second does not push out a sample
	f.last = now
	values := config.MetricValues{
		OnboardHostToDevice: now.HostHits, OnboardDiskToDevice: now.DiskHits,
		MatchedTokens: (now.HostHits + now.DiskHits) * f.pageSize,
	}
	values.SetOffloads(now.Committed, now.WriteBehind, f.bypass)
	values.HostCacheHitRate, values.DiskCacheHitRate = f.hits.Rates()
	metric.Each(&values, f.report)
}
