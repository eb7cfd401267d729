package schedule

import (
	"math"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// TestOverlapWeightFormula: the older formula on its documented example, whose
// three workers have 2, 5 and 8 of 10 blocks.
func TestOverlapWeightFormula(t *testing.T) {
	c := with(func(c *Config) { c.Formula = FormulaOverlapWeight })
	workers := []worker{{hits: hits(2, 0, 0, 0), blocks: 10}, {hits: hits(5, 0, 0, 0), blocks: 5}, {hits: hits(8, 0, 0, 0), blocks: 9}}
	for _, tc := range []struct {
		weight, multiplier float64
		costs              []float64
		chosen             int
	}{
		{1, 0, []float64{18, 10, 11}, 1},
		{3, 0, []float64{34, 20, 15}, 2},
		{0, 0, []float64{10, 5, 9}, 1},
		// The pool holds blocks 0..9 too: half of those beyond the device count.
		{1, 0.5, []float64{14, 7.5, 10}, 1},
	} {
		c.OverlapWeight, c.SharedMultiplier = tc.weight, tc.multiplier
		pool := FromRanges([]Range{{0, 10}})
		r := &Request{Tokens: 160, BlockSize: 16, TrackPrefill: true, SharedHits: &pool}
		candidates, chosen := weighed(t, NewCostSelector(CostOptions{}), choice(&c, r, workers))
		if chosen != tc.chosen {
			t.Errorf("weight %v: worker %d won", tc.weight, chosen+1)
		}
		for i, want := range tc.costs {
			if candidates[i].Cost != want {
				t.Errorf("weight %v: cost of worker %d is %v, want %v", tc.weight, i+1, candidates[i].Cost, want)
			}
		}
	}
}

// TestSmallestTreeWinsATieOfTheOlderFormula: and among equally small ones each
// wins sometimes.
func TestSmallestTreeWinsATieOfTheOlderFormula(t *testing.T) {
	held := map[kv.WorkerID]uint64{1: 1, 2: 7, 3: 5, 4: 5}
	s := NewCostSelector(CostOptions{Seed: 1, Held: func(m *index.Members, at int) uint64 { return held[m.List[at].Worker.ID] }})
	old := with(func(c *Config) { c.Formula = FormulaOverlapWeight })
	explicit := with(func(c *Config) { c.Tie = TieSmallestTree })
	for _, c := range []Config{old, explicit} {
		won := map[int]int{}
		for range 200 {
			in := choice(&c, &Request{Tokens: 16, BlockSize: 16}, []worker{{blocks: 1}, {}, {}, {}})
			m, err := s.Select(in)
			if err != nil {
				t.Fatal(err)
			}
			won[m]++
		}
		if len(won) != 2 || won[2] < 50 || won[3] < 50 {
			t.Errorf("%s formula: %v won, want members 2 and 3 about equally", c.Formula, won)
		}
	}
}

// TestPreferredTaintsMoveTheCost: exp(-tanh(sum of weights)), applied to costs
// of 100 and 90.
func TestPreferredTaintsMoveTheCost(t *testing.T) {
	near, far := []string{"zone=a", "gpu=h200"}, []string{"zone=b"}
	for _, tc := range []struct {
		name    string
		workers []worker
		prefer  []TaintPreference
		chosen  int
		factor  float64
	}{
		{"liked 0.85", []worker{{blocks: 100, taints: near}, {blocks: 90, taints: far}}, []TaintPreference{{"zone=a", 0.85}}, 0, math.Exp(-math.Tanh(0.85))},
		{"disliked 0.25", []worker{{blocks: 90, taints: near}, {blocks: 100, taints: far}}, []TaintPreference{{"zone=a", -0.25}}, 1, math.Exp(math.Tanh(0.25))},
		{"weights add up", []worker{{blocks: 100, taints: near}, {blocks: 90, taints: far}}, []TaintPreference{{"zone=a", 0.5}, {"gpu=h200", 0.35}}, 0, math.Exp(-math.Tanh(0.85))},
		{"at most e", []worker{{blocks: 1, taints: near}, {blocks: 2, taints: far}}, []TaintPreference{{"zone=a", -1e9}}, 1, math.E},
		{"unknown taint", []worker{{blocks: 100, taints: near}, {blocks: 90, taints: far}}, []TaintPreference{{"zone=c", 9}}, 1, 1},
	} {
		c := with(func(c *Config) { c.Tie = TieFirst })
		r := &Request{BlockSize: 16, PreferredTaints: tc.prefer}
		candidates, chosen := weighed(t, NewCostSelector(CostOptions{}), choice(&c, r, tc.workers))
		if chosen != tc.chosen {
			t.Errorf("%s: worker %d won", tc.name, chosen+1)
		}
		if got := candidates[0].TaintFactor; math.Abs(got-tc.factor) > 1e-12 {
			t.Errorf("%s: factor %v, want %v", tc.name, got, tc.factor)
		}
		if want := float64(tc.workers[0].blocks) * tc.factor; math.Abs(candidates[0].Cost-want) > 1e-9 {
			t.Errorf("%s: cost %v, want %v", tc.name, candidates[0].Cost, want)
		}
	}
}

// TestFormulaLines: the lines that explain a cost read as documented.
func TestFormulaLines(t *testing.T) {
	for _, tc := range []struct {
		c    Candidate
		want string
	}{
		{Candidate{Worker: kv.Worker{ID: 1}, Hits: hits(15, 0, 0, 0), Cost: 125.5, Weight: 1, Prefill: 100.5, Decode: 25, TaintFactor: 1},
			"Formula for worker_1: 125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)"},
		{Candidate{Worker: kv.Worker{ID: 7, Rank: 2}, Hits: hits(1, 2, 0, 0), Cost: 4, Weight: 2, Prefill: 1.5, Decode: 1, TaintFactor: 1},
			"Formula for worker_7/2: 4.0 = 2.0 * 1.5 + 1.0 (cached_blocks: 3)"},
		{Candidate{Worker: kv.Worker{ID: 1}, Cost: 2, Weight: 2, Prefill: 1.5, Decode: 1, TaintFactor: 0.5},
			"Formula for worker_1: 2.0 = (2.0 * 1.5 + 1.0) * 0.500 (cached_blocks: 0)"},
		{Candidate{Worker: kv.Worker{ID: 1}, Hits: hits(0, 4, 0, 0), Cost: 130, TaintFactor: 1, Mode: ModePrice, Price: price.Price{Wait: 2, TTFT: 70, Decode: 40, Imposed: 10}},
			"Formula for worker_1: 130.0 = price of 70.0 ms to the first token with 2.0 ms of waiting, 40.0 ms of answer, 10.0 ms imposed on others (cached_blocks: 4)"},
	} {
		if got := tc.c.Formula(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
