package simulate

import (
	"math"
	"time"
)

// histogram counts durations in buckets of 1 %. The zero value is empty.
type histogram struct {
	counts [bucketCount]uint32
	n      uint64
	sum    float64 // seconds
}

const (
	bucketCount  = 1900
	bucketFactor = 1.01
	shortest     = 10 * time.Microsecond
)

var bucketLog = math.Log(bucketFactor)

func (h *histogram) add(d time.Duration) {
	i := 0
	if d > shortest {
		i = min(bucketCount-1, int(math.Log(float64(d)/float64(shortest))/bucketLog))
	}
	h.counts[i]++
	h.n++
	h.sum += d.Seconds()
}

// mean returns the mean in milliseconds, 0 without durations.
func (h *histogram) mean() float64 {
	if h.n == 0 {
		return 0
	}
	return 1e3 * h.sum / float64(h.n)
}

// quantile returns a quantile in milliseconds, to 1 %.
func (h *histogram) quantile(q float64) float64 {
	want, sum := uint64(math.Ceil(q*float64(h.n))), uint64(0)
	for i, c := range h.counts {
		if sum += uint64(c); sum >= want && c > 0 {
			return float64(shortest) / 1e6 * math.Pow(bucketFactor, float64(i)+0.5)
		}
	}
	return 0
}
