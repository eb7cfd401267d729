package schedule

import (
	"cmp"
	"fmt"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Prompt is what a selector needs to know about a request.
type Prompt struct {
	// Tokens is the length of the prompt; BlockSize is in tokens and not 0.
	Tokens, BlockSize int
}

// Blocks is the number of blocks of the prompt, a partial one included.
func (p Prompt) Blocks() int { return (p.Tokens + p.BlockSize - 1) / p.BlockSize }

// Load is what a worker has to do already.
type Load struct {
	// PrefillTokens are prompt tokens still to be computed.
	PrefillTokens int
	// ActiveBlocks are the distinct prompt blocks of its running requests, and
	// NewBlocks how many the request at hand would add to them.
	ActiveBlocks, NewBlocks int
	// Requests is the number of its running requests.
	Requests int
}

// Candidate is a worker that a request may be sent to.
type Candidate struct {
	Worker kv.Worker
	Hits   index.Hits
	// Effective is Config.Effective of Hits, and CachedTokens the same in tokens.
	Effective    float64
	CachedTokens int
	Load         Load
	// Cost is what a CostSelector came to: Config.PrefillLoadScale times Prefill
	// plus Decode, all in blocks. Another selector leaves them 0.
	Cost, Prefill, Decode float64
}

// Selector picks one of several workers.
type Selector interface {
	// Select returns the index of the chosen candidate. There is at least one,
	// and they are ordered by worker. A selector may fill in their costs.
	Select(p Prompt, candidates []Candidate) int
}

var (
	_ Selector = (*CostSelector)(nil)
	_ Selector = (*RoundRobin)(nil)
)

// CostOptions say how a CostSelector chooses among costs. The zero value takes
// the lowest, and draws among equals.
type CostOptions struct {
	// Temperature, 0..maxTemperature, above 0 samples workers by a softmax over
	// costs that are scaled to 0..1 first.
	Temperature float64
	// Seed makes the draws repeatable; 0 takes a random one.
	Seed uint64
	// FirstOfEqual takes the first of equally good workers instead of drawing.
	FirstOfEqual bool
}

const maxTemperature = 1e6

// Validate reports the first option that is out of range.
func (o *CostOptions) Validate() error {
	return checkRange("router temperature", o.Temperature, maxTemperature)
}

// CostSelector chooses by expected cost.
type CostSelector struct {
	config  Config
	options CostOptions
	random  *rand.Rand
	weights []float64
}

// NewCostSelector returns a selector; the error names the bad field.
func NewCostSelector(c Config, o CostOptions) (*CostSelector, error) {
	if err := cmp.Or(c.Validate(), o.Validate()); err != nil {
		return nil, fmt.Errorf("cost selector: %w", err)
	}
	seed := o.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return &CostSelector{config: c, options: o, random: rand.New(rand.NewPCG(seed, 0))}, nil
}

// Select fills in every candidate's cost and picks by it.
func (s *CostSelector) Select(p Prompt, candidates []Candidate) int {
	least := candidates[0].Load.PrefillTokens
	for i := range candidates {
		least = min(least, candidates[i].Load.PrefillTokens)
	}
	s.weights = s.weights[:0]
	for i := range candidates {
		s.config.price(p, &candidates[i], least)
		s.weights = append(s.weights, candidates[i].Cost)
	}
	if s.options.Temperature > 0 {
		return drawSoftmax(s.weights, s.options.Temperature, s.random)
	}
	if s.options.FirstOfEqual {
		return drawLowest(s.weights, nil)
	}
	return drawLowest(s.weights, s.random)
}

// price fills in the cost of one candidate. least is the smallest prefill load
// of all candidates.
func (c *Config) price(p Prompt, w *Candidate, least int) {
	blockSize := float64(p.BlockSize)
	// Cached tokens are added back because the credit below takes off what they
	// are worth, which need not be one block per block.
	pending := w.Load.PrefillTokens + max(0, p.Tokens-w.CachedTokens) + w.CachedTokens
	decay := 1.0
	if c.CreditDecay > 0 && p.Tokens > 0 {
		ahead := float64(w.Load.PrefillTokens-least) / blockSize
		decay = 1 / (1 + c.CreditDecay*ahead/float64(p.Blocks()))
	}
	credit := c.OverlapCredit*decay*float64(w.Hits[kv.TierDevice]) + c.below(w.Hits)
	w.Prefill = max(0, float64(pending)/blockSize-credit)
	w.Decode = float64(w.Load.ActiveBlocks+w.Load.NewBlocks) + c.ActiveRequestWeight*float64(w.Load.Requests)
	w.Cost = c.PrefillLoadScale*w.Prefill + w.Decode
}

// RoundRobin chooses workers in turn, whatever they hold. A worker that comes
// or goes does not disturb the turns of the others. The zero value is ready.
type RoundRobin struct {
	last    kv.Worker
	started bool
}

// Select picks the first worker after the one picked last.
func (s *RoundRobin) Select(_ Prompt, candidates []Candidate) int {
	next := 0
	if s.started {
		for next < len(candidates) && candidates[next].Worker.Compare(s.last) <= 0 {
			next++
		}
	}
	if next == len(candidates) {
		next = 0
	}
	s.last, s.started = candidates[next].Worker, true
	return next
}
