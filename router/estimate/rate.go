package estimate

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxSamples is how many of its last samples a rate keeps.
	maxSamples = 16
	// outlierFactor is the largest factor between a sample that counts and the median.
	outlierFactor = 4
	// decay is the weight of a sample relative to the next one. Eight samples halve it.
	decay = 0.917
	// 1/maxReportShare is about the largest share of one report in its rate.
	maxReportShare = 4
)

// sample is an amount and its time in seconds. Both are above 0.
type sample struct{ amount, seconds float64 }

func (s sample) rate() float64 { return s.amount / s.seconds }

// atMost returns s, or a smaller sample of the same rate.
func (s sample) atMost(amount float64) sample {
	if s.amount <= amount {
		return s
	}
	return sample{amount, s.seconds * amount / s.amount}
}

// rate is an amount per second of busy time, learned from samples.
type rate struct {
	// reported says that the samples come from load reports. One wrong report must not
	// decide the rate, so each sample counts for at most about a quarter.
	reported bool

	ring  [maxSamples]sample
	count int // samples so far
	value float64
	last  time.Time // of the last sample
}

// add adds a sample to the rate and computes r.value again: the mean of the last maxSamples
// samples, weighted by age and without outliers. It reports whether the new sample is an
// outlier: far off the median. An outlier counts once later samples agree with it.
func (r *rate) add(s sample, now time.Time) (outlying bool) {
	r.ring[r.count%maxSamples] = s
	r.count++
	r.last = now
	var room [maxSamples]sample
	samples := r.capped(room[:0])
	med := weightedMedian(samples)
	var sum sample
	weight := 1.0
	for i := range samples { // from the latest sample to the oldest
		s := samples[(r.count-1-i)%maxSamples]
		if within(s.rate(), med) {
			sum.amount += weight * s.amount
			sum.seconds += weight * s.seconds
		}
		weight *= decay
	}
	r.value = sum.rate()
	return !within(s.rate(), med)
}

// capped returns the rate's last samples, in the memory of the empty slice samples. Samples
// from load reports are capped at a multiple of their median amount, with the same rate: one
// wrong report must not decide the rate.
func (r *rate) capped(samples []sample) []sample {
	samples = append(samples, r.ring[:r.len()]...)
	if !r.reported {
		return samples
	}
	var room [maxSamples]float64
	amounts := room[:0]
	for _, s := range samples {
		amounts = append(amounts, s.amount)
	}
	slices.Sort(amounts)
	limit := amounts[(len(amounts)-1)/2] * max(1, float64(len(samples))/maxReportShare)
	for i := range samples {
		samples[i] = samples[i].atMost(limit)
	}
	return samples
}

// within reports whether a rate is close enough to the median to count.
func within(v, median float64) bool { return v*outlierFactor >= median && v <= median*outlierFactor }

// len returns how many samples the ring has.
func (r *rate) len() int { return min(r.count, maxSamples) }

// valid reports whether the rate has enough samples and the last one is recent.
func (r *rate) valid(o *Options, now time.Time) bool {
	return r.count >= o.MinSamples && now.Sub(r.last) <= o.MaxAge
}

// weightedMedian returns the rate at which half of the samples' total amount is reached, in
// the order of rates. There is at least one sample.
func weightedMedian(samples []sample) float64 {
	var room [maxSamples]sample
	sorted := append(room[:0], samples...)
	slices.SortFunc(sorted, func(a, b sample) int { return cmp.Compare(a.rate(), b.rate()) })
	whole := 0.0
	for _, s := range sorted {
		whole += s.amount
	}
	part := 0.0
	for _, s := range sorted {
		if part += s.amount; 2*part >= whole {
			return s.rate()
		}
	}
	return sorted[len(sorted)-1].rate() // rounding
}
