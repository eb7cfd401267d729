package schedule

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// rates is an estimator for tests: it knows how long each worker takes for a
// token and for a block of each tier.
type rates struct {
	perToken map[kv.WorkerID]float64
	perBlock [kv.NumTiers]float64
	asked    int
}

func (r *rates) Prices(in *Selection, prices []price.Price) (why string, ok bool) {
	r.asked++
	for k := range prices {
		m := in.At(k)
		w, hits := in.Members.List[m].Worker, in.Request.hitsOf(int32(m))
		rate, ok := r.perToken[w.ID]
		if !ok {
			return fmt.Sprintf("no prefill rate of worker %s yet", w), false
		}
		left := in.Request.Tokens - int(hits.Total())*in.Request.BlockSize
		prices[k] = price.Price{TTFT: float64(in.Loads.PrefillTokens[m]+int64(left)) * rate}
		for tier, n := range hits {
			prices[k].TTFT += float64(n) * r.perBlock[tier]
		}
	}
	return "", true
}

func costMode(c *Config) { c.Price, c.Tie = true, TieFirst }

// TestPriceTakesTheCheapestWorker: where weights take the worker with more
// hits, a slow disk makes computing anew the better choice.
func TestPriceTakesTheCheapestWorker(t *testing.T) {
	r := &rates{perToken: map[kv.WorkerID]float64{1: 1, 2: 1, 3: 1}, perBlock: [kv.NumTiers]float64{0, 1, 20, 40}}
	pool := FromRanges([]Range{{0, 4}})
	for _, tc := range []struct {
		name    string
		workers []worker
		ms      []float64
		chosen  int
	}{
		{"a slow disk is worth less than nothing", []worker{{hits: hits(0, 0, 4, 0)}, {}}, []float64{80, 64}, 1},
		{"host memory is worth it", []worker{{}, {hits: hits(0, 4, 0, 0)}}, []float64{64, 4}, 1},
		{"a queue ahead counts", []worker{{hits: hits(4, 0, 0, 0), prefill: 100}, {}}, []float64{100, 64}, 1},
		{"ties go as in weights", []worker{{}, {}, {}}, []float64{64, 64, 64}, 0},
	} {
		c := with(costMode)
		s := NewCostSelector(CostOptions{Estimator: r})
		in := choice(&c, &Request{Tokens: 64, BlockSize: 16, TrackPrefill: true, SharedHits: &pool}, tc.workers)
		r.asked = 0
		candidates, chosen := weighed(t, s, in)
		if chosen != tc.chosen || in.Outcome.Mode != ModePrice || in.Outcome.Cost != tc.ms[chosen] || in.Outcome.Decode != 0 {
			t.Errorf("%s: member %d, %+v", tc.name, chosen, in.Outcome)
		}
		for k, want := range tc.ms {
			if candidates[k].Cost != want || candidates[k].Mode != ModePrice {
				t.Errorf("%s: member %d: %+v, want %v ms", tc.name, k, candidates[k], want)
			}
		}
		if r.asked != 1 {
			t.Errorf("%s: the estimator was asked %d times", tc.name, r.asked)
		}
		if got := s.Stats(); got != (CostStats{ByPrice: 1}) {
			t.Errorf("%s: %+v", tc.name, got)
		}
	}
}

// TestAMissingMeasureFallsBackToWeights: for all candidates, and the result says
// why. A worker that is no candidate does not matter.
func TestAMissingMeasureFallsBackToWeights(t *testing.T) {
	nan := &rates{perToken: map[kv.WorkerID]float64{1: math.NaN(), 2: 1, 3: 1}}
	for name, tc := range map[string]struct {
		estimator Estimator
		allowed   map[kv.WorkerID]struct{}
		mode      string
	}{
		"no estimator":   {nil, nil, "weights: no estimator"},
		"one is missing": {&rates{perToken: map[kv.WorkerID]float64{1: 1, 2: 1}}, nil, "weights: no prefill rate of worker 3/0 yet"},
		"and not asked":  {&rates{perToken: map[kv.WorkerID]float64{1: 1, 2: 1}}, ids(1, 2), ModePrice},
		"not a number":   {nan, nil, "weights: the price of worker 1/0 is {Wait:0 TTFT:NaN Decode:0 Machine:0 Imposed:0 Doubt:0 Cached:0}"},
		"negative":       {&rates{perToken: map[kv.WorkerID]float64{1: 1, 2: 1, 3: -1}}, nil, "weights: the price of worker 3/0 is {Wait:0 TTFT:-64 Decode:0 Machine:0 Imposed:0 Doubt:0 Cached:0}"},
	} {
		s := newScheduler(t, func(o *Options) { costMode(&o.Config); o.Estimator = tc.estimator })
		r := &Request{Tokens: 64, BlockSize: 16, TrackPrefill: true, Members: fleet(3), Allowed: tc.allowed,
			Hits: []index.Hit{{Member: 1, Hits: hits(0, 0, 4, 0)}}}
		got, err := s.Schedule(t.Context(), r)
		if err != nil || got.Mode != tc.mode {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		want := CostStats{ByWeights: 1, FellBack: 1}
		if tc.mode == ModePrice {
			want = CostStats{ByPrice: 1}
		} else if got.Cost != 3 || got.Worker.ID != 2 {
			t.Errorf("%s: worker %s at %v, want what the weights say", name, got.Worker, got.Cost)
		}
		if stats := s.Stats().Cost; stats != want {
			t.Errorf("%s: %+v", name, stats)
		}
	}
}

// TestTemperatureAndTaintsApplyToMilliseconds as they do to blocks.
func TestTemperatureAndTaintsApplyToMilliseconds(t *testing.T) {
	r := &rates{perToken: map[kv.WorkerID]float64{1: 1, 2: 1.1, 3: 1.2}}
	c := with(func(c *Config) { c.Price, c.Temperature = true, 0.7 })
	s := NewCostSelector(CostOptions{Seed: 1, Estimator: r})
	won := [3]float64{}
	const n = 20000
	for range n {
		m, err := s.Select(choice(&c, &Request{Tokens: 100, BlockSize: 10}, make([]worker, 3)))
		if err != nil {
			t.Fatal(err)
		}
		won[m] += 1.0 / n
	}
	// The costs 100, 110 and 120 have these weights in a softmax at temperature 0.7.
	weights := [3]float64{1, math.Exp(-0.5 / 0.7), math.Exp(-1 / 0.7)}
	for i := range weights {
		want := weights[i] / (weights[0] + weights[1] + weights[2])
		if slack := 6 * math.Sqrt(want*(1-want)/n); math.Abs(won[i]-want) > slack {
			t.Errorf("worker %d: %.4f, want %.4f", i+1, won[i], want)
		}
	}
	c.Temperature = 0
	in := choice(&c, &Request{Tokens: 100, BlockSize: 10, PreferredTaints: []TaintPreference{{"x", 0.85}}}, []worker{{}, {}, {taints: []string{"x"}}})
	if _, chosen := weighed(t, s, in); chosen != 2 || math.Abs(in.Outcome.Cost-120*math.Exp(-math.Tanh(0.85))) > 1e-9 {
		t.Errorf("member %d, %+v", chosen, in.Outcome)
	}
}

// TestByPriceLowerTiersAreNotComputed: in price mode a request is booked for what no
// tier but the external one has; by weights, for what the tiers' weights leave. So it
// is when there is nobody who could tell costs, or for callers that know of no tiers.
func TestByPriceLowerTiersAreNotComputed(t *testing.T) {
	estimator := &rates{perToken: map[kv.WorkerID]float64{1: 1}}
	four := []index.Hit{{Member: 0, Hits: hits(1, 1, 1, 1)}}
	for name, tc := range map[string]struct {
		cost      bool
		estimator Estimator
		hits      []index.Hit
		overlaps  []Overlap
		want      int64
	}{
		"by price":     {true, estimator, four, nil, 160 - 48},
		"by weights":   {false, estimator, four, nil, 160 - 36},
		"no estimator": {true, nil, four, nil, 160 - 36},
		"no tiers":     {true, estimator, nil, []Overlap{{0, 1.5}}, 160 - 24},
		"more than it": {true, estimator, []index.Hit{{Member: 0, Hits: hits(0, 0, 20, 0)}}, nil, 0},
	} {
		s := newScheduler(t, func(o *Options) { o.Config.Price, o.Estimator = tc.cost, tc.estimator })
		r := &Request{ID: "a", Book: true, Tokens: 160, BlockSize: 16, TrackPrefill: true, Members: fleet(1), Hits: tc.hits, Overlaps: tc.overlaps}
		if got, err := s.Schedule(t.Context(), r); err != nil || !got.Booked {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		if got := s.account.Columns().PrefillTokens[0]; got != tc.want {
			t.Errorf("%s: %d tokens are booked, want %d", name, got, tc.want)
		}
	}
}

// TestARequestThatOverridesAWeightIsDecidedByWeights, because a price has none, and the answer says so.
func TestARequestThatOverridesAWeightIsDecidedByWeights(t *testing.T) {
	zero := 0.0
	for name, o := range map[string]*Override{
		"overlap_score_credit": {OverlapCredit: &zero}, "prefill_load_scale": {PrefillLoadScale: &zero},
		"overlap_score_weight": {OverlapWeight: &zero}, "": {Temperature: &zero, SharedMultiplier: &zero},
	} {
		s := newScheduler(t, func(c *Options) {
			c.Config.Price, c.Estimator = true, &rates{perToken: map[kv.WorkerID]float64{1: 1}}
		})
		want := ModePrice
		if name != "" {
			want = "weights: the request overrides " + name
		}
		got, err := s.Schedule(t.Context(), &Request{Tokens: 160, BlockSize: 16, Members: fleet(1), Override: o})
		if err != nil || got.Mode != want {
			t.Errorf("%q: %q, %v", name, got.Mode, err)
		}
	}
}

// TestARequestMayHaveAnObjectiveOfItsOwn: it decides which parts of a price count, the explanation and the
// result name it, and a counter has it. Without a price it changes nothing.
func TestARequestMayHaveAnObjectiveOfItsOwn(t *testing.T) {
	prices := fixed{{TTFT: 100, Decode: 10, Machine: 30, Imposed: 1}, {TTFT: 20, Decode: 900, Machine: 500, Imposed: 1}, {TTFT: 60, Decode: 800, Machine: 1, Imposed: 1}}
	for own, want := range map[price.Objective]kv.WorkerID{price.Balanced: 1, price.TTFT: 2, price.Throughput: 3} {
		s := newScheduler(t, func(o *Options) {
			o.Config.Price, o.Config.Objective, o.Estimator = true, price.Throughput, prices
		})
		r := &Request{Tokens: 64, BlockSize: 16, Members: fleet(3), Override: &Override{Objective: &own}}
		r.Explain = func(c *Candidate) {
			if c.Objective != own || c.Cost != c.Price.Total(own) {
				t.Errorf("%s: %+v", own, c)
			}
		}
		if got, err := s.Schedule(t.Context(), r); err != nil || got.Worker.ID != want || got.Objective != own {
			t.Errorf("%s: worker %s by %s, %v; want %d", own, got.Worker, got.Objective, err, want)
		}
		if got, err := s.Schedule(t.Context(), &Request{Tokens: 64, BlockSize: 16, Members: fleet(3)}); err != nil || got.Worker.ID != 3 || got.Objective != price.Throughput {
			t.Errorf("without an objective: worker %s by %s, %v", got.Worker, got.Objective, err)
		}
		if got := s.Stats().Cost; got != (CostStats{ByPrice: 2, ByObjective: 1}) {
			t.Errorf("%s: %+v", own, got)
		}
	}
	none := price.Throughput + 1
	s := newScheduler(t, func(o *Options) { o.Config.Price = true })
	if _, err := s.Schedule(t.Context(), &Request{Tokens: 64, BlockSize: 16, Members: fleet(1), Override: &Override{Objective: &none}}); err == nil || !strings.Contains(err.Error(), "objective") {
		t.Errorf("objective %d: %v", none, err)
	}
	ttft := price.TTFT
	if got, err := s.Schedule(t.Context(), &Request{Tokens: 64, BlockSize: 16, Members: fleet(1), Override: &Override{Objective: &ttft}}); err != nil || got.Mode != "weights: no estimator" || s.Stats().Cost.ByObjective != 0 {
		t.Errorf("without an estimator: %+v, %v", got, err)
	}
}

// fixed is an estimator with given prices.
type fixed []price.Price

func (f fixed) Prices(_ *Selection, prices []price.Price) (why string, ok bool) {
	copy(prices, f)
	return "", true
}

// TestNearlyEqualPricesGoToTheMostCachedTokens, then to the least wait, and of equal waits the prompt's first block decides, so that
// two routers send a new prefix to one worker.
func TestNearlyEqualPricesGoToTheLeastWait(t *testing.T) {
	c := DefaultConfig()
	c.Price = true
	choose := func(first kv.SequenceHash, prices ...price.Price) int {
		s := NewCostSelector(CostOptions{Seed: 1, Estimator: fixed(prices)})
		in := choice(&c, &Request{Tokens: 64, BlockSize: 16}, make([]worker, len(prices)))
		in.Request.Sequence = []kv.SequenceHash{first}
		m, err := s.Select(in)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := choose(1, price.Price{TTFT: 1000, Wait: 6, Doubt: 1}, price.Price{TTFT: 1025, Wait: 5, Doubt: 1}, price.Price{TTFT: 1070, Doubt: 1}); m != 1 {
		t.Errorf("member %d, want 1: within 3 %%, and the least wait", m)
	}
	if m := choose(1, price.Price{TTFT: 1000, Wait: 6, Doubt: 0.01}, price.Price{TTFT: 1025, Wait: 5, Doubt: 0.01}); m != 0 {
		t.Errorf("member %d, want 0: 2 %% are beyond the error", m)
	}
	if m := choose(1, price.Price{TTFT: 100, Doubt: 1, Cached: 16}, price.Price{TTFT: 100, Wait: 0.4, Doubt: 1, Cached: 32}, price.Price{TTFT: 104, Doubt: 1, Cached: 64}); m != 1 {
		t.Errorf("member %d, want 1: within 3 %%, and the most cached tokens", m)
	}
	seen := map[int]bool{}
	for first := range kv.SequenceHash(20) {
		m := choose(first, price.Price{TTFT: 100}, price.Price{TTFT: 100}, price.Price{TTFT: 100})
		if again := choose(first, price.Price{TTFT: 100}, price.Price{TTFT: 100}, price.Price{TTFT: 100}); again != m {
			t.Errorf("block %d goes to %d and to %d", first, m, again)
		}
		seen[m] = true
	}
	if len(seen) != 3 {
		t.Errorf("20 new prefixes go to %d of 3 equal workers", len(seen))
	}
}

// TestObjectives: each leaves out what it says.
func TestObjectives(t *testing.T) {
	p := price.Price{TTFT: 1, Decode: 20, Machine: 300, Imposed: 4000}
	for o, want := range map[price.Objective]float64{price.Balanced: 4021, price.TTFT: 4001, price.Throughput: 4300} {
		if got := p.Total(o); got != want {
			t.Errorf("%s: %v, want %v", o, got, want)
		}
	}
}
