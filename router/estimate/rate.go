package estimate

import (
	"cmp"
	"slices"
	"time"
)

const (
	// maxSamples is the number of samples of a rate.
	maxSamples = 16
	// outlier is the factor by which a sample may differ from the median and still
	// count.
	outlier = 4
	// decay is the weight of a sample relative to the next one: half after eight.
	decay = 0.917
	// 1/reportShare is about the largest share of one report in its rate.
	reportShare = 4
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
	// reported says that the samples come from load reports. Then no sample counts
	// for more than about a quarter, so that one nonsensical report is outvoted.
	reported bool

	ring  [maxSamples]sample
	count int // samples so far
	value float64
	last  time.Time // of the last sample
}

// add adds a sample, and reports whether the sample is so far off the median that
// it does not count now. It will count if later samples agree.
func (r *rate) add(s sample, now time.Time) (off bool) {
	r.ring[r.count%maxSamples] = s
	r.count++
	r.last = now
	var room [maxSamples]sample
	samples := r.counted(room[:0])
	middle := median(samples)
	var sum sample
	weight := 1.0
	for i := range samples {
		s := samples[(r.count-1-i)%maxSamples]
		if within(s.rate(), middle) {
			sum.amount += weight * s.amount
			sum.seconds += weight * s.seconds
		}
		weight *= decay
	}
	r.value = sum.rate()
	return !within(s.rate(), middle)
}

// counted appends the samples, each with the amount that counts.
func (r *rate) counted(samples []sample) []sample {
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
	limit := amounts[(len(amounts)-1)/2] * max(1, float64(len(samples))/reportShare)
	for i := range samples {
		samples[i] = samples[i].atMost(limit)
	}
	return samples
}

func within(v, middle float64) bool { return v*outlier >= middle && v <= middle*outlier }

func (r *rate) len() int { return min(r.count, maxSamples) }

// holds reports whether there are enough samples and the last one is recent.
func (r *rate) holds(o *Options, now time.Time) bool {
	return r.count >= o.MinSamples && now.Sub(r.last) <= o.MaxAge
}

// median returns the rate that half of the whole amount exceeded. A small sample
// tells less than a large one.
func median(samples []sample) float64 {
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
