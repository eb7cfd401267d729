package measure

import (
	"math"
	"runtime/metrics"
	"testing"
)

func TestQuantilesOfWhatCameBetween(t *testing.T) {
	buckets := []float64{math.Inf(-1), 1, 2, 3, math.Inf(1)}
	between := func(before, after []uint64) Histogram {
		return Between(&metrics.Float64Histogram{Counts: before, Buckets: buckets}, &metrics.Float64Histogram{Counts: after, Buckets: buckets})
	}
	h := between([]uint64{50, 0, 0, 1}, []uint64{50, 99, 1, 1})
	for q, want := range map[float64]float64{0.5: 2, 0.99: 2, 0.995: 3, 1: 3} {
		if got := h.Quantile(q); got != want || h.N != 100 {
			t.Errorf("quantile %g of %d values: %g, want %g of 100", q, h.N, got, want)
		}
	}
	if got := between(make([]uint64, 4), []uint64{0, 1, 0, 1}).Quantile(1); got != 3 {
		t.Errorf("in a bucket without an end: %g, want its beginning, 3", got)
	}
	if got := between(make([]uint64, 4), make([]uint64, 4)).Quantile(0.99); got != 0 {
		t.Errorf("of nothing: %g", got)
	}
}
