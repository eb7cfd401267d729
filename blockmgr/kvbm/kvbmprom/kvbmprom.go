package kvbmprom

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// New returns a registry of metrics for config.Runtime, which registers KVBM's metrics
// with to.
func New(to prometheus.Registerer) config.MetricsRegistry { return registry{to} }

type registry struct{ to prometheus.Registerer }

// Namespace implements config.MetricsRegistry. It registers all of KVBM's metrics. The error says
// which of them cannot be registered, such as a name that is taken.
func (r registry) Namespace(name string) (config.MetricsNamespace, error) {
	n := &namespace{counters: make(map[config.Metric]prometheus.Counter), gauges: make(map[config.Metric]prometheus.Gauge)}
	var errs []error
	for _, f := range metric.Fields[config.MetricValues]() {
		fullName := name + "_" + f.Name
		if f.Kind == metric.Gauge {
			g := prometheus.NewGauge(prometheus.GaugeOpts{Name: fullName, Help: f.Help})
			n.gauges[config.Metric(f.Name)] = g
			errs = append(errs, r.to.Register(g))
			continue
		}
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: fullName, Help: f.Help})
		n.counters[config.Metric(f.Name)] = c
		errs = append(errs, r.to.Register(c))
	}
	return n, errors.Join(errs...)
}

// namespace holds one Prometheus metric for each of KVBM's. The maps never change.
type namespace struct {
	counters map[config.Metric]prometheus.Counter
	gauges   map[config.Metric]prometheus.Gauge
}

// Add implements config.MetricsNamespace.
func (n *namespace) Add(m config.Metric, v uint64) {
	if c := n.counters[m]; c != nil {
		c.Add(float64(v))
	}
}

// Set implements config.MetricsNamespace.
func (n *namespace) Set(m config.Metric, v float64) {
	if g := n.gauges[m]; g != nil {
		g.Set(v)
	}
}
