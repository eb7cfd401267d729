package schedule

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/draw"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// CostSelector chooses by cost. The Config of a Selection says which cost and which Tie.
type CostSelector struct {
	estimator Estimator
	blocksOf  func(m *index.Members, member int) uint64
	random    *rand.Rand
	// costs has the cost of each candidate in the current decision, and prices its price in price mode.
	costs  []float64
	prices []price.Price
	// active has, by member number, how many blocks of the request are already active on the
	// worker. It is all 0 between decisions.
	active []int32
	// hits is the memory of credit.
	hits  []index.Hit
	stats CostStats
}

// CostStats counts decisions by their score.
type CostStats struct {
	// ByWeights includes FellBack.
	ByWeights uint64 `metric:"-"`
	ByPrice   uint64 `metric:"decisions_by_price" help:"Decisions by expected milliseconds."`
	FellBack  uint64 `metric:"decisions_fallen_back" help:"Decisions by weights because a measure was missing."`
	// ByObjective is part of ByPrice.
	ByObjective uint64 `metric:"decisions_by_objective" help:"Decisions by expected milliseconds with the objective of the request."`
}

// CostOptions configure a CostSelector.
type CostOptions struct {
	// Seed makes the draws repeatable; 0 means a random seed.
	Seed uint64
	// Estimator predicts the cost when Config.Price is set. Nil has no measures.
	Estimator Estimator
	// Held returns how many blocks a member has, for TieSmallestTree. Nil makes all equal.
	// Held is called under the scheduler's lock, for workers of equal cost only.
	Held func(m *index.Members, member int) uint64
}

// NewCostSelector returns a selector. The weights come from each Selection's Config.
func NewCostSelector(o CostOptions) *CostSelector {
	seed := o.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &CostSelector{estimator: o.Estimator, blocksOf: o.Held, random: rand.New(rand.NewPCG(seed, 0))}
}

// Stats returns the counters. Stats must not run beside Select.
func (s *CostSelector) Stats() CostStats { return s.stats }

// Select implements Selector. It computes the cost of each candidate and returns the member
// number of the chosen one: the lowest cost, or a draw by temperature. In price mode the costs
// are expected milliseconds. Without a price for every candidate, Select falls back to
// costs in blocks, and in.Outcome.Mode says why.
func (s *CostSelector) Select(in *Selection) (member int, err error) {
	s.begin(in)
	defer s.end(in)
	w := newWeighing(in)
	in.Outcome.Mode = ModeWeights
	if name := in.Request.Override.weighs(); in.Config.Price && name != "" {
		in.Outcome.Mode = ModeWeights + ": the request overrides " + name
	} else if in.Config.Price {
		why, ok := s.estimate(in)
		if ok {
			in.Outcome.Mode = ModePrice
		} else {
			in.Outcome.Mode = ModeWeights + ": " + why
		}
	}
	if in.Outcome.Mode == ModePrice {
		s.stats.ByPrice++
		if o := in.Request.Override; o != nil && o.Objective != nil {
			s.stats.ByObjective++
		}
	} else {
		s.stats.ByWeights++
		s.weigh(&w)
	}
	s.preferTaints(in)
	k := s.pick(in)
	c := s.candidate(&w, k)
	in.Outcome.Cost, in.Outcome.Prefill, in.Outcome.Decode = c.Cost, c.Prefill, c.Decode
	in.Outcome.Weight, in.Outcome.TaintFactor, in.Outcome.Price, in.Outcome.Objective = c.Weight, c.TaintFactor, c.Price, c.Objective
	return in.At(k), nil
}

// explain calls Request.Explain for each candidate of the decision that Select has just made.
func (s *CostSelector) explain(in *Selection) {
	s.begin(in)
	defer s.end(in)
	w := newWeighing(in)
	for k := range s.costs {
		c := s.candidate(&w, k)
		in.Request.Explain(&c)
	}
}

// begin prepares the reused memory of the selector for one decision: s.costs with an element
// per candidate, and s.active. end undoes it.
func (s *CostSelector) begin(in *Selection) {
	if n := in.Len(); cap(s.costs) < n {
		s.costs = make([]float64, n, n+n/4)
	} else {
		s.costs = s.costs[:n]
	}
	if n := len(in.Members.List); len(s.active) < n {
		s.active = make([]int32, n+n/4)
	}
	for _, a := range in.Active {
		s.active[a.Member] = a.Blocks
	}
}

// end clears the memory of a decision.
func (s *CostSelector) end(in *Selection) {
	for _, a := range in.Active {
		s.active[a.Member] = 0
	}
}

// weigh sets s.costs to the costs of all candidates in blocks. Hits are ordered by member,
// and so are candidates. So weigh handles each member with hits, and lets weighRest handle
// the members without hits in between. A request without hits may have overlaps instead: the
// caller's own count of cached blocks for each worker. On a large cluster a decision spends most
// of its time in weigh and weighRest, so they copy their parameters into local variables.
func (s *CostSelector) weigh(w *weighing) {
	in, loads, v, from := w.in, w.in.Loads, *w, 0 // the candidates before from have a cost
	for i := range in.Request.Hits {
		h := &in.Request.Hits[i]
		m := int(h.Member)
		k, ok := m, true
		if in.Candidates != nil { // else candidate k is member k
			if k, ok = in.Find(h.Member); !ok {
				continue
			}
		}
		if from < k {
			s.weighRest(w, from, k)
		}
		r := v.overlapOfHits(&h.Hits)
		// These are the usual terms, without a call. termsOf handles a credit that load or a
		// shared cache changes, and cached blocks with more tokens than the prompt has.
		t := terms{tokens: v.promptTokens, credit: v.deviceCredit*r.device + r.lower}
		if !v.constantCredit || r.effective*v.blockSize > float64(v.promptTokens) {
			t = w.termsOf(m, r)
		}
		s.costs[k] = v.cost(t, loads.PrefillTokens[m], loads.ActiveBlocks[m]+v.addedBlocks-s.active[m], loads.Requests[m]).total
		from = k + 1
	}
	if len(in.Request.Hits) == 0 {
		from = s.weighOverlaps(w)
	}
	s.weighRest(w, from, len(s.costs))
}

// weighOverlaps sets costs for a request that gives each worker's overlap in blocks, in
// Request.Overlaps, and no hits by tier. It handles the candidates up to the last one that
// Overlaps names, and returns the number of the next candidate.
func (s *CostSelector) weighOverlaps(w *weighing) (from int) {
	for _, o := range w.in.Request.Overlaps {
		k, ok := w.in.Find(o.Member)
		if !ok {
			continue
		}
		s.weighRest(w, from, k)
		s.costs[k] = s.costOf(w, int(o.Member), w.termsOf(int(o.Member), overlapOfBlocks(o.Blocks))).total
		from = k + 1
	}
	return from
}

// costOf returns the cost of member m, whose terms are t, in blocks.
func (s *CostSelector) costOf(w *weighing, m int, t terms) costParts {
	loads := w.in.Loads
	return w.cost(t, loads.PrefillTokens[m], loads.ActiveBlocks[m]+w.addedBlocks-s.active[m], loads.Requests[m])
}

// weighRest sets the costs of candidates from..to-1, whose workers have no block of the
// prompt. All of them have the same terms, so their costs differ only by the loads.
func (s *CostSelector) weighRest(w *weighing, from, to int) {
	t, v := w.termsOf(0, overlap{}), *w // without overlap the member makes no difference
	loads := w.in.Loads
	if w.in.Candidates != nil {
		for k := from; k < to; k++ {
			s.costs[k] = s.costOf(w, int(w.in.Candidates[k]), t).total
		}
		return
	}
	costs, active := s.costs[from:to], s.active[from:to]
	prefill, blocks, requests := loads.PrefillTokens[from:to], loads.ActiveBlocks[from:to], loads.Requests[from:to]
	// Equal lengths let the compiler drop the bounds checks of the loop.
	active, prefill, blocks, requests = active[:len(costs)], prefill[:len(costs)], blocks[:len(costs)], requests[:len(costs)]
	for k := range costs {
		costs[k] = v.cost(t, prefill[k], blocks[k]+v.addedBlocks-active[k], requests[k]).total
	}
}

// estimate sets s.prices to the price of each candidate, and s.costs to their totals.
// ok is false when the estimator lacks a measure or returns no usable number. why then names
// the reason, and the caller falls back to costs in blocks.
func (s *CostSelector) estimate(in *Selection) (why string, ok bool) {
	defer func() {
		if !ok {
			s.stats.FellBack++
		}
	}()
	if s.estimator == nil {
		return "no estimator", false
	}
	if n := len(s.costs); cap(s.prices) < n {
		s.prices = make([]price.Price, n, n+n/4)
	} else {
		s.prices = s.prices[:n]
	}
	request := in.Request
	credited := s.credit(in)
	in.Request = credited
	why, ok = s.estimator.Prices(in, s.prices)
	in.Request = request
	if !ok {
		return why, false
	}
	for k := range s.prices {
		p := &s.prices[k]
		if !p.Usable() {
			return fmt.Sprintf("the price of worker %s is %+v", in.Members.List[in.At(k)].Worker, *p), false
		}
		s.costs[k] = p.Total(in.Config.Objective)
	}
	in.credits = credited != request
	return "", true
}

// preferTaints multiplies the cost of each candidate by its taintFactor. A taint is a label
// of a worker, which a request may prefer or avoid.
func (s *CostSelector) preferTaints(in *Selection) {
	if len(in.Request.PreferredTaints) == 0 || in.Request.Pinned != nil { // a pin leaves no choice
		return
	}
	for k := range s.costs {
		s.costs[k] *= taintFactor(in, in.At(k))
	}
}

// taintFactor returns the factor by which the request's preferences for taints, the labels of
// workers, change the cost of member m: exp(-tanh(sum of the weights)). It is in 1/e..e, and
// below 1 for a preferred member.
func taintFactor(in *Selection, m int) float64 {
	sum := 0.0
	for _, p := range in.Request.PreferredTaints {
		if hasTaint(&in.Workers[m], p.Taint) {
			sum += p.Weight
		}
	}
	if sum == 0 {
		return 1
	}
	return math.Exp(-math.Tanh(sum))
}

// pick returns the number of the chosen candidate by s.costs. With a temperature it draws by
// cost. Otherwise it chooses the lowest cost, and Config.Tie decides among equals.
func (s *CostSelector) pick(in *Selection) (candidate int) {
	c := in.Config
	if c.Temperature > 0 {
		d := draw.NewSoftmax(s.costs, c.Temperature)
		return d.Draw(s.random)
	}
	if in.Outcome.Mode == ModePrice && c.Tie == TieRandom {
		key := uint64(0)
		if len(in.Request.Sequence) > 0 {
			key = uint64(in.Request.Sequence[0])
		}
		return price.Pick(s.costs, s.prices, key, func(k int) uint64 {
			w := in.Members.List[in.At(k)].Worker
			return uint64(w.ID)<<16 ^ uint64(w.Rank)
		})
	}
	tie := c.Tie
	if tie == TieRandom && c.Formula == FormulaOverlapWeight && in.Outcome.Mode != ModePrice {
		tie = TieSmallestTree // that formula's own rule: see FormulaOverlapWeight
	}
	switch {
	case tie == TieFirst:
		return draw.Lowest(s.costs, nil)
	case tie == TieSmallestTree && s.blocksOf != nil:
		return s.pickSmallest(in)
	}
	return draw.Lowest(s.costs, s.random)
}

// pickSmallest returns the number of a candidate with the lowest cost. Among several it
// chooses the worker that holds the fewest blocks, and draws among equals.
func (s *CostSelector) pickSmallest(in *Selection) (candidate int) {
	best := draw.Lowest(s.costs, nil)
	lowest, fewest, equals := s.costs[best], uint64(math.MaxUint64), 0
	for k := best; k < len(s.costs); k++ {
		if s.costs[k] != lowest {
			continue
		}
		held := s.blocksOf(in.Members, in.At(k))
		if held > fewest {
			continue
		}
		if held < fewest {
			fewest, equals = held, 0
		}
		// Taking the n-th of n equals with chance 1/n gives each the same chance.
		if equals++; s.random.IntN(equals) == 0 {
			best = k
		}
	}
	return best
}

// candidate returns a description of candidate number k with all parts of its cost, for
// Request.Explain and the Outcome. It runs after s.costs is complete.
func (s *CostSelector) candidate(w *weighing, k int) Candidate {
	in := w.in
	m := in.At(k)
	c := Candidate{Worker: in.Members.List[m].Worker, Hits: in.Request.hitsOf(int32(m)), InFlight: in.inFlight(int32(m)), TaintFactor: 1, Mode: in.Outcome.Mode}
	r := w.memberOverlap(int32(m))
	c.Effective, c.CachedTokens, c.Cost = r.effective, CachedTokens(r.effective, in.Request.BlockSize), s.costs[k]
	c.PendingPrefill, c.ActiveBlocks, c.Requests = in.Loads.PrefillTokens[m], in.Loads.ActiveBlocks[m], in.Loads.Requests[m]
	if in.Request.Pinned == nil {
		c.TaintFactor = taintFactor(in, m)
	}
	if c.Mode == ModePrice {
		c.Price, c.Objective = s.prices[k], in.Config.Objective
	} else {
		t := w.termsOf(m, r)
		p := s.costOf(w, m, t)
		c.Weight, c.Prefill, c.Decode = w.prefillWeight, p.prefill, p.decode
		c.Credit = t.credit + t.decodeCredit
	}
	return c
}

// Formula returns a line that shows how the cost is computed, for logs.
func (c *Candidate) Formula() string {
	name := fmt.Sprintf("worker_%d", c.Worker.ID)
	if c.Worker.Rank != 0 {
		name += fmt.Sprintf("/%d", c.Worker.Rank)
	}
	factor := ""
	if c.TaintFactor != 1 {
		factor = fmt.Sprintf(" * %.3f", c.TaintFactor)
	}
	if c.Mode == ModePrice {
		return fmt.Sprintf("Formula for %s: %.1f = price of %.1f ms to the first token with %.1f ms of waiting, %.1f ms of answer, %.1f ms imposed on others%s (cached_blocks: %d)",
			name, c.Cost, c.Price.TTFT, c.Price.Wait, c.Price.Decode, c.Price.Imposed, factor, c.Hits.Total())
	}
	if factor != "" {
		return fmt.Sprintf("Formula for %s: %.1f = (%.1f * %.1f + %.1f)%s (cached_blocks: %d)",
			name, c.Cost, c.Weight, c.Prefill, c.Decode, factor, c.Hits.Total())
	}
	return fmt.Sprintf("Formula for %s: %.1f = %.1f * %.1f + %.1f (cached_blocks: %d)",
		name, c.Cost, c.Weight, c.Prefill, c.Decode, c.Hits.Total())
}
