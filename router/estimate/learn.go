package estimate

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// features is the number of terms of a fit.
	features = 3
	// fitHalfLife is the age at which a sample counts half in a fit.
	fitHalfLife = 5 * time.Minute
	// speedHalfLife is the age at which a sample counts half in a worker's speed.
	speedHalfLife = 15 * time.Second
	// oldSeconds is the mean age of its samples at which a worker's speed may be off by a factor of e.
	oldSeconds = 40
	// clipFrom is the weight of samples from which on far ones are clipped.
	clipFrom = 8
	// clip is the largest factor between a sample and the fit that counts in full.
	clip = 3
)

// observation is work and the seconds that it took. The work is in the units of a fit's terms.
type observation struct {
	x  [features]float64
	y  float64
	at time.Time
}

// fit learns seconds as a sum of terms that are not negative: y = term[0]*x[0] + ... It is a ridge
// regression of relative errors, with sums that decay, so that it needs no memory of samples.
type fit struct {
	sums    [features][features]float64
	targets [features]float64
	weight  float64 // of the samples, decayed
	samples int
	last    time.Time
	term    [features]float64
	solved  bool
}

// add adds a sample, whose seconds are those of a worker of mean speed. Seconds far from the fit
// count as the nearest ones that do not.
func (f *fit) add(s observation, now time.Time) {
	if !f.last.IsZero() {
		f.decay(now)
	}
	f.last = now
	y := s.y
	if want := f.predict(s.x); f.weight >= clipFrom && want > 0 {
		y = min(max(y, want/clip), want*clip)
	}
	// Weights by what is expected, and not by what came, keep the fit from leaning towards small samples.
	expected := y
	if f.weight >= clipFrom && f.valid() {
		expected = max(f.predict(s.x), y/clip)
	}
	w := 1 / (expected * expected)
	for i := range features {
		for j := range features {
			f.sums[i][j] += w * s.x[i] * s.x[j]
		}
		f.targets[i] += w * s.x[i] * y
	}
	f.weight++
	f.samples++
	f.solved = false
}

// decay ages the sums.
func (f *fit) decay(now time.Time) {
	d := halved(now.Sub(f.last), fitHalfLife)
	for i := range features {
		for j := range features {
			f.sums[i][j] *= d
		}
		f.targets[i] *= d
	}
	f.weight *= d
}

// halved returns the weight of something of an age.
func halved(age, halfLife time.Duration) float64 {
	if age <= 0 {
		return 1
	}
	return math.Exp2(-age.Seconds() / halfLife.Seconds())
}

// valid reports whether the fit has samples and terms.
func (f *fit) valid() bool { return f.weight >= 0.5 && (f.term[0]+f.term[1]+f.term[2] > 0) }

// solve computes the terms. A term that would be negative is 0, and the others are computed without it.
func (f *fit) solve() {
	if f.solved || f.weight == 0 {
		return
	}
	f.solved = true
	on := [features]bool{true, true, true}
	for range features {
		term, lowest := f.solveFor(on), -1
		for i := range features {
			if on[i] && term[i] < 0 && (lowest < 0 || term[i] < term[lowest]) {
				lowest = i
			}
		}
		if lowest < 0 {
			f.term = term
			return
		}
		on[lowest] = false
	}
}

// ridge is the share of the samples' own sum that pulls a term towards 0.
const ridge = 1e-4

// solveFor solves the equations of the terms that are on, by elimination.
func (f *fit) solveFor(on [features]bool) (term [features]float64) {
	a, b := f.sums, f.targets
	for i := range features {
		a[i][i] += ridge*f.sums[i][i] + 1e-12
		if on[i] {
			continue
		}
		for j := range features {
			a[i][j], a[j][i] = 0, 0
		}
		a[i][i], b[i] = 1, 0
	}
	for i := range features {
		for j := i + 1; j < features; j++ {
			factor := a[j][i] / a[i][i]
			for k := i; k < features; k++ {
				a[j][k] -= factor * a[i][k]
			}
			b[j] -= factor * b[i]
		}
	}
	for i := features - 1; i >= 0; i-- {
		term[i] = b[i]
		for j := i + 1; j < features; j++ {
			term[i] -= a[i][j] * term[j]
		}
		term[i] /= a[i][i]
		if !on[i] {
			term[i] = 0
		}
	}
	return term
}

// predict returns the seconds of work.
func (f *fit) predict(x [features]float64) float64 {
	return f.term[0]*x[0] + f.term[1]*x[1] + f.term[2]*x[2]
}

// speed is how a worker compares with the fit of its model: the median of its last samples, by
// age. Far samples do not move it.
type speed struct {
	ring  [maxSamples]observation
	count int
	last  time.Time
}

func (s *speed) add(v observation) {
	s.ring[s.count%maxSamples] = v
	s.count++
	s.last = v.at
}

func (s *speed) len() int { return min(s.count, maxSamples) }

// slowness is a factor on the seconds of a fit, and how uncertain it is: a standard deviation of its
// logarithm.
type slowness struct{ factor, doubt float64 }

// of returns the slowness of a worker at a time. Without samples it is 1: that of the model. With
// few or old samples it lies between.
func (s *speed) of(f *fit, now time.Time) slowness {
	type weighted struct{ ratio, weight float64 }
	var room [maxSamples]weighted
	all, sum, ages := room[:0], 0.0, 0.0
	for i := range s.ring[:s.len()] {
		if want := f.predict(s.ring[i].x); want > 0 {
			age := now.Sub(s.ring[i].at)
			w := halved(age, speedHalfLife)
			all, sum, ages = append(all, weighted{math.Log(s.ring[i].y / want), w}), sum+w, ages+w*age.Seconds()
		}
	}
	if sum == 0 {
		return slowness{1, 1}
	}
	slices.SortFunc(all, func(a, b weighted) int { return cmp.Compare(a.ratio, b.ratio) })
	quantile := func(q float64) float64 {
		part := 0.0
		for _, w := range all {
			if part += w.weight; part >= q*sum {
				return w.ratio
			}
		}
		return all[len(all)-1].ratio
	}
	trust := sum / (sum + 0.5)
	spread := (quantile(0.84) - quantile(0.16)) / 2
	return slowness{math.Exp(trust * quantile(0.5)), spread/math.Sqrt(max(1, sum)) + 0.5/(sum+0.5) + ages/sum/oldSeconds}
}

// moving is a mean whose values fade. The zero value has no values.
type moving struct{ value, weight float64 }

func (m *moving) add(v float64) {
	m.weight = min(m.weight+1, 64)
	m.value += (v - m.value) / m.weight
}

// flow counts things per second, with a half-life.
type flow struct {
	value float64
	at    time.Time
}

const flowHalfLife = 20 * time.Second

func (f *flow) add(v float64, now time.Time) {
	f.value, f.at = f.per(now)+v*math.Ln2/flowHalfLife.Seconds(), now
}

// per returns the things per second at a time.
func (f *flow) per(now time.Time) float64 {
	if f.at.IsZero() {
		return 0
	}
	return f.value * halved(now.Sub(f.at), flowHalfLife)
}

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
