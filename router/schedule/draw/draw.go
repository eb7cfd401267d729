package draw

import (
	"math"
	"math/rand/v2"
)

// Lowest returns the position of a lowest cost: a random one of several, or the first when
// random is nil.
func Lowest(costs []float64, random *rand.Rand) int {
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

// nthEqual returns the position of the n-th cost, from 0, that equals the cost at position
// first. No cost before first equals it, and at least n after first do.
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

// Softmax is a distribution over positions of costs. The probability of position i is
// proportional to exp(-(costs[i]-min)/((max-min)*temperature)). So a low temperature prefers
// low costs, and only the ratios of cost differences matter.
type Softmax struct {
	costs []float64
	// low and span are half of the lowest cost and of the difference to the highest, so
	// that the difference of two extreme costs does not overflow.
	low, span, temperature float64
}

// NewSoftmax returns the distribution over costs. It keeps costs, which must not change until
// the last Draw. temperature is above 0.
func NewSoftmax(costs []float64, temperature float64) Softmax {
	low, high := costs[0], costs[0]
	for _, c := range costs[1:] {
		if c < low {
			low = c
		} else if c > high {
			high = c
		}
	}
	return Softmax{costs, low / 2, high/2 - low/2, temperature}
}

// weight returns the probability of position i relative to that of a lowest cost, 0..1.
func (s *Softmax) weight(i int) float64 {
	return math.Exp(-(s.costs[i]/2 - s.low) / s.span / s.temperature)
}

// maxRejections is how many positions Draw tries before it adds up all weights.
const maxRejections = 24

// Draw returns a random position by its probability.
//
// It uses rejection sampling: it draws a uniform position and accepts it with the chance of
// its weight. At usual temperatures a few trials are enough, while the sum over all weights
// costs an exponential per position. After maxRejections trials Draw adds up the weights. The
// trials are independent, so this does not change the distribution.
func (s *Softmax) Draw(random *rand.Rand) int {
	if s.span == 0 { // all costs are equal
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

// drawByTotal returns a random position by its probability, as Draw does. It computes all
// weights, and takes the position where their running sum passes a random share of the total.
func (s *Softmax) drawByTotal(random *rand.Rand) int {
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
	// Rounding can leave a rest after the last weight.
	return len(s.costs) - 1
}
