package calibrate

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
)

const (
	// minSamples is the least number of steps that make a table.
	minSamples = 200
	// rounds of the fit: weights and outliers are those of the round before.
	rounds = 6
	// clip bounds the weight of an outlier, in deviations.
	clip = 3
	// smooth is the weight of a cell's distance to the line between its neighbours, over the mean weight of the
	// samples of a cell. level is that of its distance to its neighbours.
	smooth, level = 0.02, 1e-6
	// maxValues bounds the ratios of a class and the times outside of the engine.
	maxValues = 500
)

// Fit fills the table of a recording: axes, step times, ratios and times outside of the engine. Times of
// cells without samples continue those of their neighbours. Fit returns the number of steps within the spans.
func (r *Recording) Fit(into *engine.Recording, spans []span, answers []Answer) (steps int, err error) {
	samples := r.samples(spans)
	if len(samples) < minSamples {
		return 0, fmt.Errorf("recording: %d steps within the loads, want at least %d", len(samples), minSamples)
	}
	into.Tokens, into.Pairs, into.Context = axes(samples)
	cells, err := fit(into, samples)
	if err != nil {
		return 0, err
	}
	into.StepMS = nil
	for range into.Tokens {
		var plane [][]float64
		for range into.Pairs {
			plane = append(plane, cells[:len(into.Context):len(into.Context)])
			cells = cells[len(into.Context):]
		}
		into.StepMS = append(into.StepMS, plane)
	}
	table, err := engine.NewSteps(*into)
	if err != nil {
		return 0, err
	}
	into.Ratios = ratios(table, samples)
	into.OutsideMS = thinned(r.outside(answers))
	if len(into.OutsideMS) == 0 {
		return 0, errors.New("recording: no request met an idle engine")
	}
	return len(samples), nil
}

// axes returns coordinates that cover the samples: powers of two for tokens, and a few steps of a
// factor up to the largest value for what tokens attend to.
func axes(samples []sample) (tokens, pairs, context []float64) {
	var most sample
	for _, s := range samples {
		most = sample{max(most.tokens, s.tokens), max(most.pairs, s.pairs), max(most.context, s.context), 0}
	}
	for t := 1.0; t < most.tokens; t *= 2 {
		tokens = append(tokens, t)
	}
	tokens = append(tokens, most.tokens)
	return tokens, upTo(most.pairs, 4, 3), upTo(most.context, 2, 3)
}

// upTo returns 0 and the values of a factor up to most.
func upTo(most, factor float64, n int) []float64 {
	if most == 0 {
		return []float64{0}
	}
	out := []float64{0}
	for i := n - 1; i >= 0; i-- {
		out = append(out, most/math.Pow(factor, float64(i)))
	}
	return out
}

// fit returns the cells of a table, whose interpolation has the least squares of relative distances to the
// samples. Samples that are far off count as nearer ones.
func fit(r *engine.Recording, samples []sample) ([]float64, error) {
	n := len(r.Tokens) * len(r.Pairs) * len(r.Context)
	mean := 0.0
	for _, s := range samples {
		mean += s.ms / float64(len(samples))
	}
	weights := slices.Repeat([]float64{1 / (mean * mean)}, len(samples))
	cells := make([]float64, n)
	for range rounds {
		m := newNormal(n)
		total := 0.0
		for i, s := range samples {
			at, share := r.Corners(s.tokens, s.pairs, s.context)
			m.add(at[:], share[:], weights[i], s.ms)
			total += weights[i]
		}
		m.bend(r, total/float64(n))
		var err error
		if cells, err = m.solve(); err != nil {
			return nil, err
		}
		reweigh(r, cells, samples, weights)
	}
	for i := range cells {
		cells[i] = max(0, cells[i])
	}
	return cells, nil
}

// reweigh sets the weights of samples by the cells: relative distances, bounded.
func reweigh(r *engine.Recording, cells []float64, samples []sample, weights []float64) {
	off, least := make([]float64, len(samples)), samples[0].ms
	for _, s := range samples {
		least = min(least, s.ms)
	}
	for i, s := range samples {
		want := 0.0
		at, share := r.Corners(s.tokens, s.pairs, s.context)
		for k := range at {
			want += share[k] * cells[at[k]]
		}
		want = max(want, least)
		off[i] = math.Abs(s.ms/want - 1)
		weights[i] = 1 / (want * want)
	}
	sorted := slices.Clone(off)
	slices.Sort(sorted)
	limit := clip * 1.48 * sorted[len(sorted)/2]
	for i := range weights {
		if off[i] > limit && limit > 0 {
			weights[i] *= limit / off[i]
		}
	}
}

// classes are the tokens from which steps have ratios of their own: small ones, in which the time between
// the engine's steps counts more, and those with prompts.
var classes = []int{1, 9, 33, 129}

// ratios returns the times of samples over those of the table. A class with few samples is part of the one
// before.
func ratios(table *engine.Steps, samples []sample) (out []engine.Ratios) {
	for i, from := range classes {
		to := math.Inf(1)
		if i+1 < len(classes) {
			to = float64(classes[i+1])
		}
		var values []float64
		for _, s := range samples {
			if s.tokens >= float64(from) && s.tokens < to {
				values = append(values, s.ms/table.Milliseconds(s.tokens, s.pairs, s.context))
			}
		}
		if len(values) >= minSamples/4 || i == 0 && len(values) > 0 {
			out = append(out, engine.Ratios{From: from, Values: thinned(values)})
		}
	}
	if len(out) > 0 {
		out[0].From = 1
	}
	return out
}

// thinned returns at most maxValues values with about the distribution of all: means of as many neighbours
// in their order, so that the mean stays.
func thinned(values []float64) (out []float64) {
	slices.Sort(values)
	n := min(len(values), maxValues)
	for i := range n {
		part := values[i*len(values)/n : (i+1)*len(values)/n]
		sum := 0.0
		for _, v := range part {
			sum += v
		}
		out = append(out, math.Round(1e4*sum/float64(len(part)))/1e4)
	}
	return out
}
