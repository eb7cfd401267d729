package prom

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

// Kinds sends the numbers of the snapshot s to ch as two metric families: every counter in the
// family counters and every gauge in gauges. The label values are labels and, last, the name of
// the number. A nil family leaves its numbers out.
func Kinds[T any](ch chan<- prometheus.Metric, counters, gauges *prometheus.Desc, s *T, labels ...string) {
	metric.Each(s, func(f *metric.Field, v float64) {
		family, kind := counters, prometheus.CounterValue
		if f.Kind == metric.Gauge {
			family, kind = gauges, prometheus.GaugeValue
		}
		if family != nil {
			ch <- prometheus.MustNewConstMetric(family, kind, v, append(slices.Clone(labels), f.Name)...)
		}
	})
}

// Histograms sends the histograms of the snapshot s to ch in one metric family. The label values are
// labels and, last, the name of the histogram.
func Histograms[T any](ch chan<- prometheus.Metric, family *prometheus.Desc, s *T, labels ...string) {
	metric.EachDurations(s, func(f *metric.Field, d *metric.Durations) {
		count, upTo := d.Cumulative()
		ch <- prometheus.MustNewConstHistogram(family, count, d.Sum.Seconds(), upTo, append(slices.Clone(labels), f.Name)...)
	})
}

// Families sends each number of the snapshot s to ch as a metric family of its own. The family's
// name is prefix and the number's name, with "_total" after a counter's. The help is the
// number's.
func Families[T any](ch chan<- prometheus.Metric, prefix string, s *T) {
	families(ch, prefix, nil, s)
}

// FamiliesBy is Families with a label. One prefix always has the same label.
func FamiliesBy[T any](ch chan<- prometheus.Metric, prefix, label, value string, s *T) {
	families(ch, prefix, []string{label}, s, value)
}

func families[T any](ch chan<- prometheus.Metric, prefix string, labels []string, s *T, values ...string) {
	metric.Each(s, func(f *metric.Field, v float64) {
		name, kind := prefix+f.Name, prometheus.GaugeValue
		if f.Kind == metric.Counter {
			name, kind = name+"_total", prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(describe(name, f.Help, labels), kind, v, values...)
	})
}

// described caches descriptions by name. The number of names is fixed at build time.
var described sync.Map // string -> *prometheus.Desc

// describe returns the description of a family.
func describe(name, help string, labels []string) *prometheus.Desc {
	if d, ok := described.Load(name); ok {
		return d.(*prometheus.Desc)
	}
	d, _ := described.LoadOrStore(name, prometheus.NewDesc(name, help, labels, nil))
	return d.(*prometheus.Desc)
}
