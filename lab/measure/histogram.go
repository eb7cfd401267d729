package measure

import (
	"math"
	"runtime/metrics"
	"slices"
)

// Histogram is what a histogram of the runtime counted between two readings.
type Histogram struct {
	// N is the number of values.
	N uint64

	counts []uint64
	bounds []float64
}

// Between returns the values that came between two readings of one runtime metric, before and after.
func Between(before, after *metrics.Float64Histogram) Histogram {
	h := Histogram{counts: slices.Clone(after.Counts), bounds: after.Buckets}
	for i := range h.counts {
		h.counts[i] -= before.Counts[i]
		h.N += h.counts[i]
	}
	return h
}

// Quantile returns an upper bound of the q-quantile, q in 0..1: the upper bound of its bucket, or
// the lower bound of the last bucket, which has no upper one. Without values it returns 0.
func (h Histogram) Quantile(q float64) float64 {
	want, sum := uint64(math.Ceil(q*float64(h.N))), uint64(0)
	for i, c := range h.counts {
		if sum += c; c == 0 || sum < want {
			continue
		}
		if math.IsInf(h.bounds[i+1], 1) {
			return h.bounds[i]
		}
		return h.bounds[i+1]
	}
	return 0
}
