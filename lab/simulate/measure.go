package simulate

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// histogram counts durations in buckets of 1 %. The zero value is empty.
type histogram struct {
	counts [bucketCount]uint32
	n      uint64
	sum    float64 // seconds
	// last is the bucket of lastAdded: requests of one step have the same gap.
	last      int
	lastAdded time.Duration
}

const (
	bucketCount  = 1900
	bucketFactor = 1.01
	shortest     = 10 * time.Microsecond
)

var bucketLog = math.Log(bucketFactor)

func (h *histogram) add(d time.Duration) {
	if d != h.lastAdded {
		h.last, h.lastAdded = 0, d
		if d > shortest {
			h.last = min(bucketCount-1, int(math.Log(float64(d)/float64(shortest))/bucketLog))
		}
	}
	h.counts[h.last]++
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

// herd measures how uneven the backlogs of the workers are.
type herd struct {
	// sums are the integrals of the backlogs of the workers, in seconds of work left over the mean of all
	// workers, while at least 4 requests run per worker.
	sums    []float64
	samples int
}

// sample adds the present backlogs. A worker that has left does not count.
func (h *herd) sample(c *cluster) {
	n, requests, work := len(c.list), 0, 0.0
	for _, e := range c.list {
		requests += e.Running() + e.Waiting()
		work += e.Work()
	}
	if n == 0 || requests < 4*n || work == 0 {
		return
	}
	for len(h.sums) < n {
		h.sums = append(h.sums, 0)
	}
	for i, e := range c.list {
		h.sums[i] += e.Work() / (work / float64(n))
	}
	h.samples++
}

// worst returns the largest mean backlog of a worker over the fair one, 0 without samples.
func (h *herd) worst() float64 {
	if h.samples == 0 {
		return 0
	}
	return slices.MaxFunc(h.sums, cmp.Compare[float64]) / float64(h.samples)
}

// balance returns the mean backlog of the least loaded worker over the fair one.
func (h *herd) balance() float64 {
	if h.samples == 0 {
		return 0
	}
	return slices.MinFunc(h.sums, cmp.Compare[float64]) / float64(h.samples)
}
