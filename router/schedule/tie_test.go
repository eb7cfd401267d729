package schedule

import "testing"

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
