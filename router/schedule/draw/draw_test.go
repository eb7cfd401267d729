package draw

import (
	"math"
	"math/rand/v2"
	"testing"
)

// frequencies draws n times from costs.
func frequencies(costs []float64, temperature float64, n int, draw func(*Softmax, *rand.Rand) int) []float64 {
	random := rand.New(rand.NewPCG(1, 2))
	counts := make([]float64, len(costs))
	s := NewSoftmax(costs, temperature)
	for range n {
		counts[draw(&s, random)] += 1 / float64(n)
	}
	return counts
}

// expected is what the formula says: exp(-(cost-min)/((max-min)*temperature)).
func expected(costs []float64, temperature float64) []float64 {
	low, high, sum := math.Inf(1), math.Inf(-1), 0.0
	for _, c := range costs {
		low, high = min(low, c), max(high, c)
	}
	p := make([]float64, len(costs))
	for i, c := range costs {
		p[i] = math.Exp(-(c - low) / (high - low) / temperature)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// TestSoftmaxMatchesItsFormula: frequencies follow the formula, which gives the
// same for costs that are scaled or moved, for few workers and for so many that
// they are drawn by trying.
func TestSoftmaxMatchesItsFormula(t *testing.T) {
	many := make([]float64, 4*maxRejections)
	for i := range many {
		many[i] = float64(i * i % 37)
	}
	for _, tc := range []struct {
		costs       []float64
		temperature float64
	}{
		{[]float64{1, 2, 5}, 0.7},
		{[]float64{1000, 2000, 5000}, 0.7},
		{[]float64{-4, -3, 0}, 0.7},
		{[]float64{-4, -3, 0}, 100},
		{many, 0.7},
		{many, 0.05},
		{many, 0.01}, // few tries succeed
	} {
		const n = 60000
		want := expected(tc.costs, tc.temperature)
		for i, got := range frequencies(tc.costs, tc.temperature, n, (*Softmax).Draw) {
			if slack := 6 * math.Sqrt(want[i]*(1-want[i])/n); math.Abs(got-want[i]) > slack+1e-9 {
				t.Errorf("%d costs, temperature %v: worker %d drawn with frequency %.4f, want %.4f",
					len(tc.costs), tc.temperature, i, got, want[i])
			}
		}
	}
}

func TestSoftmaxStandsExtremeCosts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		costs       []float64
		temperature float64
		want        int
	}{
		{[]float64{math.MaxFloat64, -math.MaxFloat64}, 1e-3, 1},
		{[]float64{0, 5e-324}, 1e-9, -1},
		{[]float64{1, 2}, math.SmallestNonzeroFloat64, 0},
	} {
		for range 100 {
			s := NewSoftmax(c.costs, c.temperature)
			got := s.Draw(random)
			if got < 0 || got > 1 || c.want >= 0 && got != c.want {
				t.Errorf("costs %v: drew %d, want %d", c.costs, got, c.want)
			}
		}
	}
	seen := [2]int{}
	for range 200 {
		s := NewSoftmax([]float64{math.MaxFloat64, math.MaxFloat64}, 1)
		seen[s.Draw(random)]++
	}
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("equal extreme costs were drawn %v times, want both", seen)
	}
	if got := Lowest([]float64{math.MaxFloat64, -math.MaxFloat64, math.MaxFloat64}, random); got != 1 {
		t.Errorf("lowest of extreme costs: %d, want 1", got)
	}
}
