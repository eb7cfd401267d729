package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/router/miss"
)

// series returns how many series have the label worker, by its value.
func series(t *testing.T, r *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int)
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetName() == "worker" {
					out[l.GetValue()]++
				}
			}
		}
	}
	return out
}

// observe has one observation in every family with the label worker.
func observe(m *Door, worker string) {
	m.FirstToken("m", worker, time.Second)
	m.Gap("m", worker)(time.Second)
	m.Ended("m", worker, time.Second, 1)
	m.Retried("m", worker, "died")
	m.Cached("m", worker, 3, 2, 1)
	m.Differ("m", worker, -1, miss.Evicted)
	m.Missed("m", worker, miss.Evicted, 1)
}

// TestSeriesOfGoneWorkersEnd: the series of a worker last while the worker is there, and for a
// while after its last request.
func TestSeriesOfGoneWorkersEnd(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newDoor(r)
	observe(m, "1/0")
	observe(m, "2/0")
	const families = 9 // with the label worker
	if got := series(t, r); got["1/0"] != families || got["2/0"] != families {
		t.Errorf("series %v, want %d for each worker", got, families)
	}
	if got := len(m.workers.of); got != families {
		t.Errorf("%d metrics are pruned, want the %d with the label worker", got, families)
	}
	present := map[string]bool{"1/0": true}
	m.workers.forget(present, time.Now())
	if got := series(t, r); got["2/0"] != families {
		t.Errorf("series %v right after a worker's last request, want %d", got, families)
	}
	m.workers.forget(present, time.Now().Add(2*keepSeries))
	if got := series(t, r); len(got) != 1 || got["1/0"] != families {
		t.Errorf("series %v, want those of 1/0 alone", got)
	}
}

// TestWorkerLabelsAreBounded: workers beyond the bound share a label.
func TestWorkerLabelsAreBounded(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newDoor(r)
	for i := range maxWorkerLabels + 10 {
		m.FirstToken("m", fmt.Sprintf("%d/0", i), time.Second)
	}
	m.FirstToken("m", "3/0", time.Second)
	if got := series(t, r); len(got) != maxWorkerLabels+1 || got[otherWorkers] != 1 || got["3/0"] != 1 {
		t.Errorf("%d labels, want %d and %q", len(got), maxWorkerLabels, otherWorkers)
	}
}
