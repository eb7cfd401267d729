package disk

import (
	"math"
	"testing"
	"time"
)

func TestSummariesAreQuartiles(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	if got, want := summarize(values), (Summary{Median: 3, Low: 2, High: 4, N: 5}); got != want {
		t.Errorf("summary %+v, want %+v", got, want)
	}
	if values[0] != 5 {
		t.Error("the caller's figures were sorted")
	}
	if got, want := summarize([]float64{1, 2}), (Summary{Median: 1.5, Low: 1.25, High: 1.75, N: 2}); got != want {
		t.Errorf("summary %+v, want %+v", got, want)
	}
	if got := summarize(nil); !math.IsNaN(got.Median) || got.N != 0 {
		t.Errorf("summary of nothing: %+v", got)
	}
}

func TestQuantilesInterpolate(t *testing.T) {
	sorted := []float64{0, 10, 20}
	for q, want := range map[float64]float64{0: 0, 0.25: 5, 0.5: 10, 0.99: 19.8, 1: 20} {
		if got := quantile(sorted, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
	}
	l := latencies{}
	l.add(2 * time.Millisecond)
	l.add(time.Millisecond)
	if got := l.at(1); got != 2000 {
		t.Errorf("latency %g µs, want 2000", got)
	}
}

func TestGeometricMean(t *testing.T) {
	if got := geometricMean([]float64{0.5, 2}); math.Abs(got-1) > 1e-12 {
		t.Errorf("%g, want 1", got)
	}
}
