package router

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/source"
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

func (f collectorFunc) Describe(chan<- *prometheus.Desc)     {}
func (f collectorFunc) Collect(out chan<- prometheus.Metric) { f(out) }

// A prompt whose client has vanished is no load of a worker whose engine says that it has
// no requests.
func TestEnginesSayWhichPrefillsAreGone(t *testing.T) {
	OnBench(t, Options{}, func(b *Bench) {
		p := b.Publisher(0x11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce())
		h := NewAPI(b.Router, APIOptions{}).Handler()
		b.Route(h, "r", NewBody("", 1, 2, 3))
		prefill := func() int {
			loads, err := b.PotentialLoads(&Request{Tokens: sourcetest.Tokens(9)})
			if err != nil {
				t.Fatal(err)
			}
			return loads[0].PrefillTokens - sourcetest.BlockSize
		}
		report := func(l kvevent.WorkerLoad) {
			for range 10 {
				r := kvevent.LoadReport{PublisherID: 11, Owner: sourcetest.WorkerOwner(1), Worker: l}
				b.Send(source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &r)}, p.Announce())
				b.Pass(time.Second)
			}
		}
		booked := prefill()
		report(kvevent.WorkerLoad{}) // of an engine that does not tell
		report(kvevent.WorkerLoad{DeviceBlocksTotal: 100, Waiting: 1})
		if got := prefill(); booked == 0 || got != booked {
			t.Errorf("%d tokens are pending, want %d", got, booked)
		}
		report(kvevent.WorkerLoad{DeviceBlocksTotal: 100})
		if got := prefill(); got != 0 {
			t.Errorf("%d tokens are pending on an engine without requests", got)
		}
		if got := Text(t, Call(t, h, "GET", "/metrics", "", "")); !strings.Contains(got, "blockyard_router_requests_phantom_total 1\n") {
			t.Error("metrics do not show the phantom")
		}
	})
}
