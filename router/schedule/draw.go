package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
)

// drawLowest is the index of a lowest cost: of several, one drawn uniformly, or
// the first when random is nil.
func drawLowest(costs []float64, random *rand.Rand) int {
	best, equals := 0, 1
	for i := 1; i < len(costs); i++ {
		switch {
		case costs[i] < costs[best]:
			best, equals = i, 1
		case costs[i] == costs[best]:
			// The n-th of n equals takes the place with chance 1/n, which leaves
			// each with the same chance.
			if equals++; random != nil && random.IntN(equals) == 0 {
				best = i
			}
		}
	}
	return best
}

// drawSoftmax draws index i with a probability proportional to
// exp(-(costs[i]-min)/((max-min)·temperature)). The costs are overwritten. When
// all are equal, so are the chances.
func drawSoftmax(costs []float64, temperature float64, random *rand.Rand) int {
	// Halves, so that the span of two extreme costs does not overflow.
	low := slices.Min(costs) / 2
	span := slices.Max(costs)/2 - low
	if span == 0 {
		return random.IntN(len(costs))
	}
	total := 0.0
	for i, c := range costs {
		costs[i] = math.Exp(-(c/2 - low) / span / temperature)
		total += costs[i]
	}
	left := random.Float64() * total
	for i, weight := range costs {
		if left -= weight; left < 0 {
			return i
		}
	}
	// Rounding can leave a rest behind the last weight.
	return len(costs) - 1
}
