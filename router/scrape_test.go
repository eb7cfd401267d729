package router

import (
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestEveryMeasureIsAMetric: learned rates with their source, and every counter of the
// estimator once.
func TestEveryMeasureIsAMetric(t *testing.T) {
	e, err := estimate.New(estimate.Options{MinSamples: 1})
	if err != nil {
		t.Fatal(err)
	}
	one, two := sourcetest.WorkerOwner(1).Worker(), sourcetest.WorkerOwner(2).Worker()
	e.SetWorker(one, 9, "m")
	e.SetWorker(two, 9, "m")
	e.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(one), Worker: kvevent.WorkerLoad{CopyBytes: 2000, CopyMicros: 1000}})
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectorFunc(func(out chan<- prometheus.Metric) {
		s := e.Stats()
		collectEstimates(e.Measures(), &s, out)
	}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	rates, numbers := map[string]float64{}, 0
	for _, f := range families {
		for _, m := range f.Metric {
			switch f.GetName() {
			case "blockyard_router_measured_rate":
				key := ""
				for _, l := range m.Label { // sorted by name: measure, source, worker
					key += l.GetValue() + " "
				}
				rates[key] = m.Gauge.GetValue()
			case "blockyard_router_estimate", "blockyard_router_estimate_total":
				numbers++
			}
		}
	}
	want := map[string]float64{"copy_bytes measured 1/0 ": 2e6, "copy_bytes model 2/0 ": 2e6}
	if !reflect.DeepEqual(rates, want) {
		t.Errorf("rates %v, want %v", rates, want)
	}
	if want := reflect.TypeFor[estimate.Stats]().NumField(); numbers != want {
		t.Errorf("%d numbers, want the %d of the estimator", numbers, want)
	}
}

// collectorFunc is a collector of what a function sends.
type collectorFunc func(chan<- prometheus.Metric)

func (f collectorFunc) Describe(chan<- *prometheus.Desc) {}

func (f collectorFunc) Collect(out chan<- prometheus.Metric) { f(out) }
