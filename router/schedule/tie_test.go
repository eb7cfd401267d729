package schedule

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestTiesAreDrawnUniformlyAndRepeatably(t *testing.T) {
	c := DefaultConfig()
	draws := func(seed uint64) (sequence []int, counts [3]int) {
		s := NewCostSelector(CostOptions{Seed: seed})
		for range 3000 {
			n, err := s.Select(choice(&c, &Request{Tokens: 64, BlockSize: 16}, []worker{{}, {blocks: 1}, {}, {}}))
			if err != nil {
				t.Fatal(err)
			}
			if n == 1 {
				t.Fatal("a worse worker won")
			}
			sequence = append(sequence, n)
			counts[max(0, n-1)]++
		}
		return sequence, counts
	}
	first, counts := draws(7)
	second, _ := draws(7)
	for i := range first {
		if first[i] != second[i] {
			t.Fatalf("draw %d: the same seed gave %d and %d", i, first[i], second[i])
		}
	}
	for i, n := range counts {
		// Six standard deviations of a fair draw.
		if n < 1000-155 || n > 1000+155 {
			t.Errorf("equal worker %d was drawn %d times of 3000, want about 1000", i, n)
		}
	}
}

// frequencies draws n times from costs.
func frequencies(costs []float64, temperature float64, n int, draw func(*softmax, *rand.Rand) int) []float64 {
	random := rand.New(rand.NewPCG(1, 2))
	counts := make([]float64, len(costs))
	s := newSoftmax(costs, temperature)
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
		for i, got := range frequencies(tc.costs, tc.temperature, n, (*softmax).draw) {
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
			s := newSoftmax(c.costs, c.temperature)
			got := s.draw(random)
			if got < 0 || got > 1 || c.want >= 0 && got != c.want {
				t.Errorf("costs %v: drew %d, want %d", c.costs, got, c.want)
			}
		}
	}
	seen := [2]int{}
	for range 200 {
		s := newSoftmax([]float64{math.MaxFloat64, math.MaxFloat64}, 1)
		seen[s.draw(random)]++
	}
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("equal extreme costs were drawn %v times, want both", seen)
	}
	if got := drawLowest([]float64{math.MaxFloat64, -math.MaxFloat64, math.MaxFloat64}, random); got != 1 {
		t.Errorf("lowest of extreme costs: %d, want 1", got)
	}
}

func TestRoundRobinKeepsItsTurnsWhenWorkersComeAndGo(t *testing.T) {
	var s RoundRobin
	c := DefaultConfig()
	pick := func(ids []int, pinned bool) int {
		in := choice(&c, &Request{Tokens: 1, BlockSize: 1}, make([]worker, len(ids)))
		for i, id := range ids {
			in.Members.List[i].Worker.ID = kv.WorkerID(id)
		}
		if pinned {
			in.Candidates, in.Request.Pinned = []int32{int32(len(ids) - 1)}, &in.Members.List[len(ids)-1].Worker
		}
		m, err := s.Select(in)
		if err != nil {
			t.Fatal(err)
		}
		return ids[m]
	}
	for i, step := range []struct {
		ids    []int
		pinned bool
		want   int
	}{
		{[]int{1, 2, 3}, false, 1}, {[]int{1, 2, 3}, false, 2}, {[]int{1, 3}, false, 3}, {[]int{1, 2, 3}, false, 1},
		{[]int{1, 2, 3}, true, 3}, {[]int{1, 2, 3}, false, 2}, {[]int{1}, false, 1}, {[]int{1}, false, 1},
		{[]int{0, 1, 5}, false, 5}, {[]int{0, 1, 5}, false, 0},
	} {
		if got := pick(step.ids, step.pinned); got != step.want {
			t.Errorf("turn %d among %v: worker %d, want %d", i, step.ids, got, step.want)
		}
	}
}
