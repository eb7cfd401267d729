package schedule

import (
	"math"
	"math/rand/v2"
)

// drawLowest is the place of a lowest cost: of several, one drawn uniformly, or
// the first when random is nil.
func drawLowest(costs []float64, random *rand.Rand) int {
	best, equals := 0, 1
	for i := 1; i < len(costs); i++ {
		if costs[i] > costs[best] {
			continue
		}
		if costs[i] < costs[best] {
			best, equals = i, 0
		}
		equals++
	}
	if random == nil || equals == 1 {
		return best
	}
	return nthEqual(costs, best, random.IntN(equals))
}

// nthEqual is the place of the n-th cost, from 0, that equals the one at first,
// before which there is none.
func nthEqual(costs []float64, first, n int) int {
	for i := first; ; i++ {
		if costs[i] != costs[first] {
			continue
		}
		if n--; n < 0 {
			return i
		}
	}
}

// softmax is a distribution over costs: the one of place i has a probability
// proportional to exp(-(costs[i]-min)/((max-min)*temperature)).
type softmax struct {
	costs             []float64
	low, span, warmth float64
}

// newSoftmax scales costs to 0..1. It works with halves, so that the span of two
// extreme costs does not overflow.
func newSoftmax(costs []float64, temperature float64) softmax {
	low, high := costs[0], costs[0]
	for _, c := range costs[1:] {
		if c < low {
			low = c
		} else if c > high {
			high = c
		}
	}
	return softmax{costs, low / 2, high/2 - low/2, temperature}
}

// weight is the probability of place i next to that of a lowest cost, 0..1.
func (s *softmax) weight(i int) float64 {
	return math.Exp(-(s.costs[i]/2 - s.low) / s.span / s.warmth)
}

// maxRejections is how often draw tries places before it adds up all weights.
const maxRejections = 24

// draw is a place drawn by its probability; with equal costs all are the same.
//
// It takes any place with the same chance and keeps it with the chance of its
// weight, until one is kept: what is kept is distributed as the weights are. At
// temperatures that are not small a few tries do, where adding up means an
// exponential for each worker. Tries that fail say nothing about what comes
// after them, so adding up after maxRejections does not change the distribution.
func (s *softmax) draw(random *rand.Rand) int {
	if s.span == 0 {
		return random.IntN(len(s.costs))
	}
	if len(s.costs) > maxRejections {
		for range maxRejections {
			if i := random.IntN(len(s.costs)); random.Float64() < s.weight(i) {
				return i
			}
		}
	}
	return s.drawByTotal(random)
}

func (s *softmax) drawByTotal(random *rand.Rand) int {
	total := 0.0
	for i := range s.costs {
		total += s.weight(i)
	}
	left := random.Float64() * total
	for i := range s.costs {
		if left -= s.weight(i); left < 0 {
			return i
		}
	}
	// Rounding can leave a rest behind the last weight.
	return len(s.costs) - 1
}
