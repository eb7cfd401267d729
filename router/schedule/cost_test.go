package schedule

import (
	"math"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
)

func hits(device, host, disk, external uint32) index.Hits {
	return index.Hits{device, host, disk, external}
}

// worker is one candidate of a test.
type worker struct {
	hits    index.Hits
	prefill int64
	// blocks are active, added are the request's that are not.
	blocks, added int32
	requests      int32
	taints        []string
}

// choice makes a selection among workers numbered from 1. The request's sequence
// is as long as the largest added; what a worker has of it is active already.
func choice(c *Config, r *Request, workers []worker) *Selection {
	in := &Selection{Request: r, Config: c, Members: fleet(len(workers)), Loads: &load.Columns{}}
	r.Members = in.Members
	sequence := int32(0)
	for _, w := range workers {
		sequence = max(sequence, w.added)
	}
	r.Sequence = make([]kv.SequenceHash, sequence)
	for i, w := range workers {
		if w.hits.Total() > 0 {
			r.Hits = append(r.Hits, index.Hit{Member: int32(i), Hits: w.hits})
		}
		if n := sequence - w.added; n > 0 {
			in.Active = append(in.Active, load.Shared{Member: int32(i), Blocks: n})
		}
		in.Loads.PrefillTokens = append(in.Loads.PrefillTokens, w.prefill)
		in.Loads.ActiveBlocks = append(in.Loads.ActiveBlocks, w.blocks)
		in.Loads.Requests = append(in.Loads.Requests, w.requests)
		in.Workers = append(in.Workers, WorkerConfig{Taints: w.taints})
	}
	return in
}

// weighed is what a selector comes to for each worker, and the one it takes.
func weighed(t *testing.T, s *CostSelector, in *Selection) (candidates []Candidate, chosen int) {
	t.Helper()
	in.Request.Explain = func(c *Candidate) { candidates = append(candidates, *c) }
	chosen, err := s.Select(in)
	if err != nil {
		t.Fatal(err)
	}
	s.explain(in)
	return candidates, chosen
}

// TestEffectiveOverlapGoldens: weighted blocks and cached tokens of worked
// examples.
func TestEffectiveOverlapGoldens(t *testing.T) {
	host, own := DefaultConfig(), DefaultConfig()
	host.HostWeight, host.DiskWeight = 0.5, 0.25
	tenth := 0.1
	own.ExternalWeight = &tenth
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
		{"external has a weight of its own", own, hits(2, 0, 0, 5), 2.5, 40},
		{"tiers of weight zero are skipped", deviceOnly, hits(2, 3, 4, 5), 2, 32},
		{"nothing", DefaultConfig(), hits(0, 0, 0, 0), 0, 0},
	} {
		got := c.config.Effective(c.hits)
		if tokens := CachedTokens(got, 16); got != c.effective || tokens != c.tokens {
			t.Errorf("%s: %v blocks, %d tokens; want %v, %d", c.name, got, tokens, c.effective, c.tokens)
		}
	}
	// The credit of a scores answer: half for a device block, a tenth for disk, and
	// half for what the shared cache holds beyond the device prefix.
	scores := Config{OverlapCredit: 0.5, HostWeight: 0.25, DiskWeight: 0.1, SharedMultiplier: 0.5}
	pool := FromRanges([]Range{{0, 4}})
	in := choice(&scores, &Request{Tokens: 64, BlockSize: 16, SharedHits: &pool}, []worker{{hits: hits(2, 1, 0, 2)}})
	w := newWeighing(in)
	r := w.memberOverlap(0)
	if got := w.credit(0, r); math.Abs(got-2.45) > 1e-12 {
		t.Errorf("router credit: %v, want 2.45", got)
	}
}

func with(change func(*Config)) Config {
	c := DefaultConfig()
	change(&c)
	return c
}

// TestCostGoldens: costs and winners of worked examples; the last worker of each
// is the one expected to win.
func TestCostGoldens(t *testing.T) {
	scale2 := with(func(c *Config) { c.PrefillLoadScale = 2 })
	credit15 := with(func(c *Config) { c.OverlapCredit = 1.5 })
	decaying := with(func(c *Config) { c.CreditDecay = 1 })
	perRequest := with(func(c *Config) { c.ActiveRequestWeight = 32 })
	noCredit := with(func(c *Config) { c.OverlapCredit = 0 })
	noPrefill := with(func(c *Config) { c.PrefillLoadScale = 0 })
	shared := with(func(c *Config) { c.SharedMultiplier = 0.5 })
	allShared := with(func(c *Config) { c.SharedMultiplier = 1 })
	decodes := with(func(c *Config) { c.DecodeWorkers = true })
	decodesNoCredit := with(func(c *Config) { c.DecodeWorkers, c.OverlapCredit = true, 0 })
	pool := FromRanges([]Range{{0, 4}})
	for _, c := range []struct {
		name      string
		config    Config
		request   Request
		workers   []worker
		costs     []float64
		untracked bool
	}{
		{"a warm worker beats a cold one in spite of its decode load", scale2, Request{Tokens: 64, BlockSize: 16},
			[]worker{{}, {hits: hits(2, 0, 0, 0), blocks: 3}}, []float64{8, 7}, false},
		{"credit 1 does not make up for much decode load", DefaultConfig(), Request{Tokens: 128, BlockSize: 16},
			[]worker{{hits: hits(4, 0, 0, 0), blocks: 5}, {}}, []float64{9, 8}, false},
		{"credit above 1 does", credit15, Request{Tokens: 128, BlockSize: 16},
			[]worker{{}, {hits: hits(4, 0, 0, 0), blocks: 5}}, []float64{8, 7}, false},
		{"cached tokens beyond the prompt are not negative work", scale2, Request{Tokens: 64, BlockSize: 16},
			[]worker{{hits: hits(6, 0, 0, 0), prefill: 16, blocks: 2, added: 3}}, []float64{7}, false},
		{"prefill that is not tracked is none", scale2, Request{Tokens: 64, BlockSize: 16},
			[]worker{{hits: hits(6, 0, 0, 0), prefill: 16, blocks: 2, added: 3}}, []float64{5}, true},
		{"a running request costs nothing by itself", DefaultConfig(), Request{BlockSize: 16},
			[]worker{{blocks: 100, requests: 4}}, []float64{100}, false},
		{"unless it has a weight", perRequest, Request{BlockSize: 16},
			[]worker{{blocks: 100, requests: 4}}, []float64{228}, false},
		{"pending prefill outweighs a prefix when its credit decays", decaying, Request{Tokens: 64, BlockSize: 16},
			[]worker{{hits: hits(4, 0, 0, 0), prefill: 48}, {}}, []float64{7 - 4/1.75, 4}, false},
		{"and does not when it does not", DefaultConfig(), Request{Tokens: 64, BlockSize: 16},
			[]worker{{}, {hits: hits(4, 0, 0, 0), prefill: 48}}, []float64{4, 3}, false},
		{"the credit decays with each worker's own load", decaying, Request{Tokens: 64, BlockSize: 16},
			[]worker{{hits: hits(4, 0, 0, 0), prefill: 48}, {hits: hits(4, 0, 0, 0)}}, []float64{7 - 4/1.75, 0}, false},
		{"an empty prompt has nothing to decay", decaying, Request{BlockSize: 16},
			[]worker{{hits: hits(1, 0, 0, 0)}}, []float64{0}, false},
		{"without credit a prefix is worth nothing", noCredit, Request{Tokens: 64, BlockSize: 16},
			[]worker{{hits: hits(4, 0, 0, 0), blocks: 3}, {}}, []float64{7, 4}, false},
		{"without prefill weight only decode counts", noPrefill, Request{Tokens: 64, BlockSize: 16},
			[]worker{{hits: hits(4, 0, 0, 0), blocks: 3}, {}}, []float64{3, 0}, false},
		{"lower tiers earn their weight", DefaultConfig(), Request{Tokens: 64, BlockSize: 16},
			[]worker{{hits: hits(0, 0, 4, 0)}, {hits: hits(0, 4, 0, 0)}}, []float64{3, 1}, false},
		{"shared blocks beyond the device prefix earn the multiplier", shared, Request{Tokens: 4, BlockSize: 1, SharedHits: &pool},
			[]worker{{}, {hits: hits(2, 0, 0, 0)}}, []float64{2, 1}, false},
		{"a shared cache that is as good as the device makes all equal", allShared, Request{Tokens: 4, BlockSize: 1, SharedHits: &pool},
			[]worker{{hits: hits(2, 0, 0, 0), blocks: 1}, {}}, []float64{1, 0}, false},
		{"a worker that decodes is chosen by decode load less credit", decodes, Request{Tokens: 48, BlockSize: 16},
			[]worker{{blocks: 8}, {hits: hits(3, 0, 0, 0), blocks: 10}}, []float64{8, 7}, true},
		{"the credit is not more than the load", decodes, Request{Tokens: 256, BlockSize: 16},
			[]worker{{blocks: 1}, {hits: hits(13, 0, 0, 0), blocks: 10}}, []float64{1, 0}, true},
		{"without credit it is the load alone", decodesNoCredit, Request{Tokens: 48, BlockSize: 16},
			[]worker{{hits: hits(3, 0, 0, 0), blocks: 10}, {blocks: 8}}, []float64{10, 8}, true},
		{"a worker that decodes is weighed like others when prefill is tracked", decodes, Request{Tokens: 48, BlockSize: 16},
			[]worker{{blocks: 8}, {hits: hits(3, 0, 0, 0), blocks: 1}}, []float64{11, 1}, false},
		{"blocks that are active already are not added", DefaultConfig(), Request{Tokens: 64, BlockSize: 16},
			[]worker{{added: 4}, {blocks: 3, added: 0}}, []float64{8, 7}, false},
		{"an effective overlap alone counts as blocks in the device", credit15,
			Request{Tokens: 64, BlockSize: 16, Overlaps: []Overlap{{Member: 1, Blocks: 2.5}}},
			[]worker{{}, {}}, []float64{4, 0.25}, false},
	} {
		c.config.Tie = TieFirst
		r := c.request
		r.TrackPrefill = !c.untracked
		in := choice(&c.config, &r, c.workers)
		candidates, chosen := weighed(t, NewCostSelector(CostOptions{}), in)
		if chosen != len(c.workers)-1 {
			t.Errorf("%s: worker %d won", c.name, chosen+1)
		}
		for i, want := range c.costs {
			if got := candidates[i].Cost; math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: cost of worker %d is %v, want %v", c.name, i+1, got, want)
			}
		}
		if out := in.Outcome; out.Cost != candidates[chosen].Cost || out.Mode != ModeWeights {
			t.Errorf("%s: the outcome is %+v", c.name, out)
		}
	}
}

// TestOverridesFlipTheChoice: what one request overrides counts for it alone.
func TestOverridesFlipTheChoice(t *testing.T) {
	zero, one, ten := 0.0, 1.0, 10.0
	pool := FromRanges([]Range{{0, 4}})
	for name, o := range map[string]*Override{
		"no credit":                   {OverlapCredit: &zero},
		"no prefill load":             {PrefillLoadScale: &zero},
		"all of the pool is as good":  {SharedMultiplier: &one},
		"nothing, so the warm stays":  nil,
		"a weight of another formula": {OverlapWeight: &ten},
	} {
		c := with(func(c *Config) { c.Tie = TieFirst })
		s, err := New(Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		members := fleet(2)
		warm := &Request{ID: "w", Tokens: 16, BlockSize: 16, Sequence: []kv.SequenceHash{9}, Members: members}
		if err := s.Add(warm, members.List[1].Worker, 0); err != nil {
			t.Fatal(err)
		}
		r := &Request{Tokens: 64, BlockSize: 16, Members: members, TrackPrefill: true, Override: o,
			Hits: []index.Hit{{Member: 1, Hits: hits(4, 0, 0, 0)}}, SharedHits: &pool}
		got, err := s.Schedule(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		if o == nil || o.OverlapWeight != nil {
			want = 1
		}
		if got.Member != want {
			t.Errorf("%s: member %d won, want %d", name, got.Member, want)
		}
		r.Override = nil
		if got, err = s.Schedule(t.Context(), r); err != nil || got.Member != 1 {
			t.Errorf("%s: without it member %d won (%v)", name, got.Member, err)
		}
	}
}

// TestWeighingSomeEqualsWeighingAll: restricting the candidates changes no cost,
// whatever hits, shared prefixes and loads there are.
func TestWeighingSomeEqualsWeighingAll(t *testing.T) {
	var workers []worker
	for i := range 200 {
		w := worker{prefill: int64(i * 31 % 97), blocks: int32(i * 7 % 23), added: int32(i % 3), requests: int32(i % 5)}
		if i%4 == 0 {
			w.hits = hits(uint32(i%9), uint32(i%5), uint32(i%3), uint32(i%2))
		}
		workers = append(workers, w)
	}
	pool := FromRanges([]Range{{1, 3}, {5, 8}})
	for name, c := range map[string]Config{
		"plain": DefaultConfig(),
		"every term": with(func(c *Config) {
			c.CreditDecay, c.SharedMultiplier, c.ActiveRequestWeight, c.OverlapCredit = 0.7, 0.3, 1.5, 1.2
		}),
		"older": with(func(c *Config) { c.Formula, c.SharedMultiplier = FormulaOverlapWeight, 0.3 }),
	} {
		t.Run(name, func(t *testing.T) {
			request := func() *Request {
				return &Request{Tokens: 100, BlockSize: 16, TrackPrefill: true, SharedHits: &pool}
			}
			all, _ := weighed(t, NewCostSelector(CostOptions{}), choice(&c, request(), workers))
			some := choice(&c, request(), workers)
			for i := range workers {
				if i%3 != 1 { // which keeps member 0, the one with the least prefill
					some.Candidates = append(some.Candidates, int32(i))
				}
			}
			least := func(in *Selection) int64 { w := newWeighing(in); return w.leastPrefill }
			if got := least(some); got != least(choice(&c, request(), workers)) {
				t.Fatalf("least prefill load %d: the test must keep the least loaded worker", got)
			}
			s := NewCostSelector(CostOptions{})
			got, _ := weighed(t, s, some)
			for k, m := range some.Candidates {
				if got[k].Cost != all[m].Cost || got[k].Worker != all[m].Worker {
					t.Errorf("member %d: %+v, want %+v", m, got[k], all[m])
				}
				// The quick way and the way that shows the parts agree.
				if parts := got[k].Weight*got[k].Prefill + got[k].Decode; parts != got[k].Cost {
					t.Errorf("member %d: cost %v, parts %v", m, got[k].Cost, parts)
				}
			}
			if slices.ContainsFunc(s.active, func(n int32) bool { return n != 0 }) {
				t.Error("scratch memory is not clear after a decision")
			}
		})
	}
}

// TestWeightsOutOfRangeAreNamed: a weight that makes costs meaningless is
// refused, in the configuration and in a request.
func TestWeightsOutOfRangeAreNamed(t *testing.T) {
	negative, nan, inf, two := -0.1, math.NaN(), math.Inf(1), 2.0
	for i, spoil := range []func(*Config){
		func(c *Config) { c.HostWeight = 1.5 },
		func(c *Config) { c.DiskWeight = -0.1 },
		func(c *Config) { c.ExternalWeight = &two },
		func(c *Config) { c.OverlapCredit = math.NaN() },
		func(c *Config) { c.PrefillLoadScale = math.Inf(1) },
		func(c *Config) { c.SharedMultiplier = 1.1 },
		func(c *Config) { c.OverlapWeight = -1 },
		func(c *Config) { c.Temperature = -1 },
		func(c *Config) { c.Formula = 2 },
		func(c *Config) { c.Tie = 3 },
	} {
		c := DefaultConfig()
		spoil(&c)
		if _, err := New(Options{Config: c}); err == nil {
			t.Errorf("case %d: config %+v was accepted", i, c)
		}
	}
	s, err := New(Options{Config: DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Override{{OverlapCredit: &negative}, {PrefillLoadScale: &nan}, {Temperature: &inf}, {SharedMultiplier: &two}} {
		r := &Request{ID: "x", Tokens: 1, BlockSize: 1, Members: fleet(1), Override: o}
		if _, err := s.Schedule(t.Context(), r); err == nil {
			t.Errorf("override %+v was accepted", o)
		}
	}
}
