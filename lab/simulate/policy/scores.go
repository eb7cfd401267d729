package policy

import (
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// hits calls do with the hits of each candidate.
func hits(in *schedule.Selection, do func(m int, h index.Hits)) {
	list := in.Request.Hits
	for k := range in.Len() {
		m := in.At(k)
		for len(list) > 0 && int(list[0].Member) < m {
			list = list[1:]
		}
		if len(list) > 0 && int(list[0].Member) == m {
			do(m, list[0].Hits)
		} else {
			do(m, index.Hits{})
		}
	}
}

// llmd adds scores of 0 to 1 and takes the highest sum: 3 for the share of the prompt that is cached (a
// block in host memory counts 0.8), 2 for the length of the queue between the shortest and the longest
// one, 2 for the free share of the device's blocks.
type llmd struct {
	c      Context
	rand   *rand.Rand
	scores []float64
}

func newLLMD(c Context) *llmd { return &llmd{c: c, rand: rand.New(rand.NewPCG(c.Seed, 10))} }

// Select implements schedule.Selector.
func (s *llmd) Select(in *schedule.Selection) (int, error) {
	s.scores = append(s.scores[:0], make([]float64, len(in.Members.List))...)
	states := make([]State, len(in.Members.List))
	shortest, longest := 1<<30, 0
	for k := range in.Len() {
		m := in.At(k)
		states[m] = s.c.View.State(in.Members.List[m].Worker)
		shortest, longest = min(shortest, states[m].Waiting), max(longest, states[m].Waiting)
	}
	blocks := float64(in.Request.Blocks())
	hits(in, func(m int, h index.Hits) {
		queue := 1.0
		if longest > shortest {
			queue = float64(longest-states[m].Waiting) / float64(longest-shortest)
		}
		cached := (float64(h[kv.TierDevice]) + 0.8*float64(h[kv.TierHost])) / blocks
		s.scores[m] = 3*cached + 2*queue + 2*(1-states[m].Used)
	})
	return lowest(in, s.rand, func(m int) float64 { return -s.scores[m] }), nil
}

// conductor takes the least expected time to the first token: prompt tokens that wait, and those of
// the request that are not cached, at one known rate. Of the workers that only answer the one with the fewest
// requests.
type conductor struct{ rand *rand.Rand }

// Select implements schedule.Selector.
func (s *conductor) Select(in *schedule.Selection) (int, error) {
	if in.Request.HandedOver {
		return lowest(in, s.rand, func(m int) float64 { return float64(in.Loads.Requests[m]) }), nil
	}
	best, least := in.At(0), 0.0
	first := true
	hits(in, func(m int, h index.Hits) {
		tokens := in.Request.Tokens - schedule.LocalTokens(h, in.Request.BlockSize)
		if t := float64(in.Loads.PrefillTokens[m]) + float64(max(1, tokens)); first || t < least {
			best, least, first = m, t, false
		}
	})
	return best, nil
}

// e2 is Preble's rule. A prompt of which more is cached than is not is sent to the least loaded of
// the workers with the longest match. Any other prompt goes to the worker with the least cost: the
// load of its present requests, what computing the prompt takes, and what the blocks that must leave
// would take again.
type e2 struct {
	c    Context
	rand *rand.Rand
	cost []float64
}

func newE2(c Context) *e2 {
	return &e2{c: c, rand: rand.New(rand.NewPCG(c.Seed, 11))}
}

// Select implements schedule.Selector. Preble's window of three minutes is here what
// is booked.
func (s *e2) Select(in *schedule.Selection) (int, error) {
	s.cost = append(s.cost[:0], make([]float64, len(in.Members.List))...)
	longest := 0
	hits(in, func(_ int, h index.Hits) { longest = max(longest, schedule.LocalTokens(h, in.Request.BlockSize)) })
	exploit := 2*longest > in.Request.Tokens
	hits(in, func(m int, h index.Hits) {
		cached := schedule.LocalTokens(h, in.Request.BlockSize)
		state := s.c.View.State(in.Members.List[m].Worker)
		// Load: prompts that wait, and 20 ms for each running request and expected token of the rest.
		load := float64(in.Loads.PrefillTokens[m])/s.c.TokensPerSecond + 0.02*float64(in.Loads.Requests[m])*float64(in.Loads.Requests[m])
		compute := float64(in.Request.Tokens-cached) / s.c.TokensPerSecond
		evict := state.Used * compute // a full device has to drop as much as it stores
		s.cost[m] = load + compute + evict
		if exploit && cached < longest {
			s.cost[m] += 1e9
		}
	})
	return lowest(in, s.rand, func(m int) float64 { return s.cost[m] }), nil
}
