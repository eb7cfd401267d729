package disk

import (
	"math"
	"runtime/metrics"
	"slices"
	"time"
)

// Summary describes figures by their quartiles.
type Summary struct {
	// Median is the second quartile, Low and High are the first and the third.
	Median, Low, High float64
	// N is how many figures there were.
	N int
}

// summarize sorts a copy of values. Of none it makes NaNs.
func summarize(values []float64) Summary {
	sorted := slices.Sorted(slices.Values(values))
	return Summary{quantile(sorted, 0.5), quantile(sorted, 0.25), quantile(sorted, 0.75), len(sorted)}
}

// quantile is the q-quantile of ascending values, interpolated between the two
// that are nearest; NaN when there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// geometricMean is NaN for no values.
func geometricMean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}

// counted is what two readings of a histogram differ by, and its sum.
func counted(before, after *metrics.Float64Histogram) (counts []uint64, n uint64) {
	counts = slices.Clone(after.Counts)
	for i := range counts {
		counts[i] -= before.Counts[i]
		n += counts[i]
	}
	return counts, n
}

// histogramQuantile is the upper bound of the bucket that the q-quantile lies
// in, or the lower one where the upper is infinite; NaN when nothing was
// counted. Bucket i is between bounds i and i+1.
func histogramQuantile(counts []uint64, bounds []float64, q float64) float64 {
	var n, sum uint64
	for _, c := range counts {
		n += c
	}
	want := uint64(math.Ceil(q * float64(n)))
	for i, c := range counts {
		if sum += c; c == 0 || sum < want {
			continue
		}
		if math.IsInf(bounds[i+1], 1) {
			return bounds[i]
		}
		return bounds[i+1]
	}
	return math.NaN()
}

// latencies are durations in microseconds.
type latencies []float64

func (l *latencies) add(d time.Duration) { *l = append(*l, float64(d)/float64(time.Microsecond)) }

// at is the q-quantile.
func (l latencies) at(q float64) float64 { return quantile(slices.Sorted(slices.Values(l)), q) }
