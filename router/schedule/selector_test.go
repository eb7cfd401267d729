package schedule

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

func hits(device, host, disk, external uint32) index.Hits {
	return index.Hits{device, host, disk, external}
}

// TestEffectiveOverlapGoldens: weighted blocks and cached tokens of the
// worked examples in the routing literature.
func TestEffectiveOverlapGoldens(t *testing.T) {
	host := DefaultConfig()
	host.HostWeight, host.DiskWeight = 0.5, 0.25
	deviceOnly := DefaultConfig()
	deviceOnly.HostWeight, deviceOnly.DiskWeight = 0, 0
	for _, c := range []struct {
		name      string
		config    Config
		hits      index.Hits
		effective float64
		tokens    int
	}{
		{"all tiers", DefaultConfig(), hits(2, 1, 2, 0), 3.25, 52},
		{"host only", DefaultConfig(), hits(0, 1, 0, 0), 0.75, 12},
		{"external counts as disk", host, hits(2, 3, 4, 5), 5.75, 92},
		{"tiers of weight zero are skipped", deviceOnly, hits(2, 3, 4, 5), 2, 32},
		{"nothing", DefaultConfig(), hits(0, 0, 0, 0), 0, 0},
	} {
		got := c.config.Effective(c.hits)
		if tokens := CachedTokens(got, 16); got != c.effective || tokens != c.tokens {
			t.Errorf("%s: %v blocks, %d tokens; want %v, %d", c.name, got, tokens, c.effective, c.tokens)
		}
	}
}

// candidate makes a worker whose cached tokens follow from its hits, as
// Schedule does.
func candidate(c Config, id int, h index.Hits, l Load, blockSize int) Candidate {
	effective := c.Effective(h)
	return Candidate{
		Worker:       kv.Worker{ID: kv.WorkerID(id)},
		Hits:         h,
		Effective:    effective,
		CachedTokens: CachedTokens(effective, blockSize),
		Load:         l,
	}
}

var cold, warm = Load{}, Load{ActiveBlocks: 3}

// TestCostGoldens: costs and winners of worked examples; the last candidate of
// each is the one expected to win.
func TestCostGoldens(t *testing.T) {
	with := func(change func(*Config)) Config {
		c := DefaultConfig()
		change(&c)
		return c
	}
	scale2 := with(func(c *Config) { c.PrefillLoadScale = 2 })
	credit15 := with(func(c *Config) { c.OverlapCredit = 1.5 })
	decaying := with(func(c *Config) { c.CreditDecay = 1 })
	perRequest := with(func(c *Config) { c.ActiveRequestWeight = 32 })
	noCredit := with(func(c *Config) { c.OverlapCredit = 0 })
	noPrefill := with(func(c *Config) { c.PrefillLoadScale = 0 })
	for _, c := range []struct {
		name   string
		config Config
		tokens int
		hits   []index.Hits
		loads  []Load
		costs  []float64
	}{
		{"a warm worker beats a cold one in spite of its decode load", scale2, 64,
			[]index.Hits{{}, hits(2, 0, 0, 0)}, []Load{cold, warm}, []float64{8, 7}},
		{"credit 1 does not make up for much decode load", DefaultConfig(), 128,
			[]index.Hits{hits(4, 0, 0, 0), {}}, []Load{{ActiveBlocks: 5}, cold}, []float64{9, 8}},
		{"credit above 1 does", credit15, 128,
			[]index.Hits{{}, hits(4, 0, 0, 0)}, []Load{cold, {ActiveBlocks: 5}}, []float64{8, 7}},
		{"cached tokens beyond the prompt are not negative work", scale2, 64,
			[]index.Hits{hits(6, 0, 0, 0)}, []Load{{PrefillTokens: 16, ActiveBlocks: 2, NewBlocks: 3}}, []float64{7}},
		{"every running request costs its weight", perRequest, 0,
			[]index.Hits{{}}, []Load{{ActiveBlocks: 100, Requests: 4}}, []float64{228}},
		{"pending prefill outweighs a prefix when its credit decays", decaying, 64,
			[]index.Hits{hits(4, 0, 0, 0), {}}, []Load{{PrefillTokens: 48}, cold}, []float64{7 - 4/1.75, 4}},
		{"and does not when it does not", DefaultConfig(), 64,
			[]index.Hits{{}, hits(4, 0, 0, 0)}, []Load{cold, {PrefillTokens: 48}}, []float64{4, 3}},
		{"without credit a prefix is worth nothing", noCredit, 64,
			[]index.Hits{hits(4, 0, 0, 0), {}}, []Load{warm, cold}, []float64{7, 4}},
		{"without prefill weight only decode counts", noPrefill, 64,
			[]index.Hits{hits(4, 0, 0, 0), {}}, []Load{warm, cold}, []float64{3, 0}},
		{"lower tiers earn their weight", DefaultConfig(), 64,
			[]index.Hits{hits(0, 0, 4, 0), hits(0, 4, 0, 0)}, []Load{cold, cold}, []float64{3, 1}},
	} {
		s, err := NewCostSelector(c.config, CostOptions{FirstOfEqual: true})
		if err != nil {
			t.Fatal(err)
		}
		var candidates []Candidate
		for i, h := range c.hits {
			candidates = append(candidates, candidate(c.config, i+1, h, c.loads[i], 16))
		}
		chosen := s.Select(Prompt{Tokens: c.tokens, BlockSize: 16}, candidates)
		if chosen != len(candidates)-1 {
			t.Errorf("%s: worker %d won", c.name, chosen+1)
		}
		for i, want := range c.costs {
			if got := candidates[i].Cost; math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: cost of worker %d is %v, want %v", c.name, i+1, got, want)
			}
		}
	}
}

func TestTiesAreDrawnUniformlyAndRepeatably(t *testing.T) {
	draws := func(seed uint64) (sequence []int, counts [3]int) {
		s, err := NewCostSelector(DefaultConfig(), CostOptions{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		for range 3000 {
			candidates := make([]Candidate, 4)
			candidates[1].Load.ActiveBlocks = 1
			n := s.Select(Prompt{Tokens: 64, BlockSize: 16}, candidates)
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

func TestFirstOfEqualTakesTheFirst(t *testing.T) {
	s, err := NewCostSelector(DefaultConfig(), CostOptions{FirstOfEqual: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if n := s.Select(Prompt{Tokens: 1, BlockSize: 1}, make([]Candidate, 3)); n != 0 {
			t.Fatalf("worker %d won a tie", n)
		}
	}
}

// TestSoftmaxMatchesItsFormula: frequencies follow
// exp(-(cost-min)/((max-min)·T)), which is the same for costs that are scaled
// or moved.
func TestSoftmaxMatchesItsFormula(t *testing.T) {
	const n, temperature = 60000, 0.7
	for _, costs := range [][]float64{{1, 2, 5}, {1000, 2000, 5000}, {-4, -3, 0}} {
		var want [3]float64
		sum := 0.0
		for i, c := range costs {
			want[i] = math.Exp(-(c - costs[0]) / (costs[2] - costs[0]) / temperature)
			sum += want[i]
		}
		random := rand.New(rand.NewPCG(1, 2))
		var counts [3]float64
		for range n {
			counts[drawSoftmax([]float64{costs[0], costs[1], costs[2]}, temperature, random)]++
		}
		for i := range want {
			p := want[i] / sum
			if slack := 6 * math.Sqrt(p*(1-p)/n); math.Abs(counts[i]/n-p) > slack {
				t.Errorf("costs %v: worker %d drawn with frequency %.4f, want %.4f", costs, i, counts[i]/n, p)
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
			got := drawSoftmax([]float64{c.costs[0], c.costs[1]}, c.temperature, random)
			if got < 0 || got > 1 || c.want >= 0 && got != c.want {
				t.Errorf("costs %v: drew %d, want %d", c.costs, got, c.want)
			}
		}
	}
	seen := [2]int{}
	for range 200 {
		seen[drawSoftmax([]float64{math.MaxFloat64, math.MaxFloat64}, 1, random)]++
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
	pick := func(ids ...int) int {
		var candidates []Candidate
		for _, id := range ids {
			candidates = append(candidates, Candidate{Worker: kv.Worker{ID: kv.WorkerID(id)}})
		}
		return ids[s.Select(Prompt{Tokens: 1, BlockSize: 1}, candidates)]
	}
	for i, step := range []struct {
		ids  []int
		want int
	}{
		{[]int{1, 2, 3}, 1}, {[]int{1, 2, 3}, 2}, {[]int{1, 3}, 3}, {[]int{1, 2, 3}, 1},
		{[]int{1, 2, 3}, 2}, {[]int{1}, 1}, {[]int{1}, 1}, {[]int{0, 1, 5}, 5}, {[]int{0, 1, 5}, 0},
	} {
		if got := pick(step.ids...); got != step.want {
			t.Errorf("turn %d among %v: worker %d, want %d", i, step.ids, got, step.want)
		}
	}
}

func TestWeightsOutOfRangeAreNamed(t *testing.T) {
	for _, spoil := range []func(*Config){
		func(c *Config) { c.HostWeight = 1.5 },
		func(c *Config) { c.DiskWeight = -0.1 },
		func(c *Config) { c.OverlapCredit = math.NaN() },
		func(c *Config) { c.PrefillLoadScale = math.Inf(1) },
	} {
		c := DefaultConfig()
		spoil(&c)
		if _, err := NewCostSelector(c, CostOptions{}); err == nil {
			t.Errorf("config %+v was accepted", c)
		}
		if _, err := New(c, &RoundRobin{}, Options{}); err == nil {
			t.Errorf("scheduler with config %+v was accepted", c)
		}
	}
	if _, err := NewCostSelector(DefaultConfig(), CostOptions{Temperature: -1}); err == nil {
		t.Error("temperature -1 was accepted")
	}
	if _, err := New(DefaultConfig(), &RoundRobin{}, Options{Expiry: -1}); err == nil {
		t.Error("expiry -1 was accepted")
	}
}
