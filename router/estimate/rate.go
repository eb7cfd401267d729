package estimate

import (
	"cmp"
	"slices"
	"time"
)

const (
	// window is how many samples a rate is made of.
	window = 16
	// outlier is by what factor a sample may be off the median and still count.
	outlier = 4
	// fading is what a sample counts for next to the one after it: half after eight.
	fading = 0.917
	// share is the part of all samples that one may make up, about: 1/share.
	share = 4
)

// sample is an amount that took a time in seconds, both above 0.
type sample struct{ amount, seconds float64 }

func (s sample) rate() float64 { return s.amount / s.seconds }

// atMost is s, or a part of it that has the same rate.
func (s sample) atMost(amount float64) sample {
	if s.amount <= amount {
		return s
	}
	return sample{amount, s.seconds * amount / s.amount}
}

// rate is an amount per second of busy time, learned from samples.
type rate struct {
	// reported says that the samples are what others say. None of them then counts for
	// more than about a quarter of all, so that one report without sense is outvoted.
	reported bool

	ring  [window]sample
	count int // samples so far
	value float64
	last  time.Time // of the last sample
}

// add takes a sample into account. It reports whether it is so far off the others
// that it does not count for now; if those that follow agree with it, it will.
func (r *rate) add(s sample, now time.Time) (off bool) {
	r.ring[r.count%window] = s
	r.count++
	r.last = now
	var room [window]sample
	samples := r.counted(room[:0])
	middle := median(samples)
	var sum sample
	weight := 1.0
	for i := range samples {
		s := samples[(r.count-1-i)%window]
		if within(s.rate(), middle) {
			sum.amount += weight * s.amount
			sum.seconds += weight * s.seconds
		}
		weight *= fading
	}
	r.value = sum.rate()
	return !within(s.rate(), middle)
}

// counted appends the samples, each with the amount that it counts for.
func (r *rate) counted(samples []sample) []sample {
	samples = append(samples, r.ring[:r.len()]...)
	if !r.reported {
		return samples
	}
	var room [window]float64
	amounts := room[:0]
	for _, s := range samples {
		amounts = append(amounts, s.amount)
	}
	slices.Sort(amounts)
	limit := amounts[(len(amounts)-1)/2] * max(1, float64(len(samples))/share)
	for i := range samples {
		samples[i] = samples[i].atMost(limit)
	}
	return samples
}

func within(v, middle float64) bool { return v*outlier >= middle && v <= middle*outlier }

func (r *rate) len() int { return min(r.count, window) }

// holds reports whether there are samples enough and the last is recent.
func (r *rate) holds(o *Options, now time.Time) bool {
	return r.count >= o.MinSamples && now.Sub(r.last) <= o.MaxAge
}

// median is the rate that half of the whole amount was faster than: a small sample
// tells less than a large one.
func median(samples []sample) float64 {
	var room [window]sample
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
