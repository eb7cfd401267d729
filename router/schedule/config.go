package schedule

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// Formula says how a CostSelector computes costs.
type Formula uint8

const (
	// FormulaCredit subtracts a credit for cached blocks from the prefill:
	//
	//	scale*max(0, prefill blocks - credit) + decode blocks + weight*requests
	FormulaCredit Formula = iota
	// FormulaOverlapWeight is the older formula. Cached tokens are only not computed. Of
	// equal workers the one with the fewest blocks wins.
	//
	//	overlap weight*uncached prefill blocks + decode blocks
	FormulaOverlapWeight
)

// String returns "credit" or "overlap_weight".
func (f Formula) String() string {
	switch f {
	case FormulaCredit:
		return "credit"
	case FormulaOverlapWeight:
		return "overlap_weight"
	}
	return fmt.Sprintf("formula(%d)", uint8(f))
}

// Tie says which of several workers with the lowest cost is chosen at temperature 0.
type Tie uint8

const (
	// TieRandom draws a worker uniformly.
	TieRandom Tie = iota
	// TieFirst chooses the first worker by id and rank.
	TieFirst
	// TieSmallestTree chooses the worker with the fewest blocks, and draws among equals.
	TieSmallestTree
)

// String returns "random", "first" or "smallest_tree".
func (t Tie) String() string {
	switch t {
	case TieRandom:
		return "random"
	case TieFirst:
		return "first"
	case TieSmallestTree:
		return "smallest_tree"
	}
	return fmt.Sprintf("tie(%d)", uint8(t))
}

// Config says how costs are computed and workers are chosen. Zero is a meaningful
// weight in every field, so start from DefaultConfig.
type Config struct {
	// Formula computes the costs. With Price it is the fallback.
	Formula Formula
	// OverlapCredit multiplies the credit for device blocks, 0..MaxWeight; 1 is the
	// default. Above 1 a cached prefix also offsets pending prefill.
	OverlapCredit float64
	// CreditDecay, 0..MaxWeight, reduces the device credit of workers with more pending
	// prefill than the least loaded worker; 0 is the default.
	CreditDecay float64
	// PrefillLoadScale weighs blocks to compute against blocks that decode,
	// 0..MaxWeight; 1 is the default.
	PrefillLoadScale float64
	// ActiveRequestWeight is the cost of one active request besides its blocks, in
	// blocks, 0..MaxWeight; 0 is the default.
	ActiveRequestWeight float64
	// HostWeight and DiskWeight are the value of a block in host memory and on disk, relative
	// to a device block, 0..1; 0.75 and 0.25 are the defaults. A tier of weight 0 is ignored.
	HostWeight, DiskWeight float64
	// ExternalWeight is the value of an external block; nil, the default, means DiskWeight.
	ExternalWeight *float64
	// SharedMultiplier is the credit for a block of the shared cache beyond the
	// worker's device prefix, 0..1; 0 is the default.
	SharedMultiplier float64
	// OverlapWeight is the weight of FormulaOverlapWeight, 0..MaxWeight; 1 is the
	// default. No other formula uses it.
	OverlapWeight float64
	// DecodeWorkers says that the workers only decode. The cost of a request without
	// tracked prefill is then the decode load less the credit.
	DecodeWorkers bool
	// Temperature, 0..MaxWeight, samples workers by a softmax over costs scaled to 0..1. 0,
	// the default, chooses the lowest cost.
	Temperature float64
	// Seed makes the draws repeatable; 0 means a random seed.
	Seed uint64
	// Tie decides between equals. FormulaOverlapWeight reads TieRandom as TieSmallestTree.
	Tie Tie
	// Price chooses by the lowest price in milliseconds, if Options.Estimator has a price for every
	// candidate. Objective says which parts of a price count.
	Price     bool
	Objective price.Objective
}

// MaxWeight bounds weights and the temperature, so that every cost is finite.
const MaxWeight = 1e6

// DefaultConfig returns Dynamo's weights, which are the router's defaults.
func DefaultConfig() Config {
	return Config{
		OverlapCredit: 1, PrefillLoadScale: 1, OverlapWeight: 1,
		HostWeight: 0.75, DiskWeight: 0.25,
	}
}

// Tune sets the weights that were tuned in the simulator (docs/simulate.md). The other weights stay.
func (c *Config) Tune() { c.PrefillLoadScale, c.HostWeight, c.DiskWeight = 8, 0.95, 0.5 }

// Validate reports the first field that is out of range.
func (c *Config) Validate() error {
	if c.Formula > FormulaOverlapWeight {
		return fmt.Errorf("formula: %s is not one of 0..%d", c.Formula, FormulaOverlapWeight)
	}
	if c.Objective > price.Throughput {
		return fmt.Errorf("objective: %s is not one of 0..%d", c.Objective, price.Throughput)
	}
	if c.Tie > TieSmallestTree {
		return fmt.Errorf("tie: %s is not one of 0..%d", c.Tie, TieSmallestTree)
	}
	for _, f := range []struct {
		name   string
		v, max float64
	}{
		{"overlap score credit", c.OverlapCredit, MaxWeight},
		{"overlap score credit decay", c.CreditDecay, MaxWeight},
		{"prefill load scale", c.PrefillLoadScale, MaxWeight},
		{"active request weight", c.ActiveRequestWeight, MaxWeight},
		{"host cache hit weight", c.HostWeight, 1},
		{"disk cache hit weight", c.DiskWeight, 1},
		{"external cache hit weight", c.external(), 1},
		{"shared cache multiplier", c.SharedMultiplier, 1},
		{"overlap score weight", c.OverlapWeight, MaxWeight},
		{"router temperature", c.Temperature, MaxWeight},
	} {
		if err := checkRange(f.name, f.v, f.max); err != nil {
			return err
		}
	}
	return nil
}

// checkRange returns an error with the name unless v is in 0..limit.
func checkRange(name string, v, limit float64) error {
	if !(v >= 0 && v <= limit) { // in this form it refuses NaN too
		return fmt.Errorf("%s: %v is not in 0..%v", name, v, limit)
	}
	return nil
}

// external returns the weight of a block in external storage, relative to a device block.
func (c *Config) external() float64 {
	if c.ExternalWeight != nil {
		return *c.ExternalWeight
	}
	return c.DiskWeight
}

// lowerTiers returns what the hits below the device tier are worth, in device blocks: each
// block counts the weight of its tier.
func (c *Config) lowerTiers(h *index.Hits) float64 {
	return c.HostWeight*float64(h[kv.TierHost]) +
		c.DiskWeight*float64(h[kv.TierDisk]) +
		c.external()*float64(h[kv.TierExternal])
}

// Effective returns the overlap of a prompt with a worker's cache, in blocks. A device block
// counts 1, a block of a lower tier its weight.
func (c *Config) Effective(h index.Hits) float64 {
	return float64(h[kv.TierDevice]) + c.lowerTiers(&h)
}

// CachedTokens returns an effective overlap in tokens.
func CachedTokens(effective float64, blockSize int) int {
	return int(max(0, math.Round(effective*float64(blockSize))))
}

// Override replaces fields of a Config for one request. A nil field keeps the
// configured value.
type Override struct {
	OverlapCredit, PrefillLoadScale, Temperature, SharedMultiplier, OverlapWeight *float64
	Objective                                                                     *price.Objective
}

// Validate reports the first field that is out of range.
func (o *Override) Validate() error {
	c := DefaultConfig()
	o.apply(&c)
	return c.Validate()
}

// weighs returns the name of a field that replaces a weight; empty for none. A price has no weights,
// so such a request is decided by weights.
func (o *Override) weighs() string {
	switch {
	case o == nil:
		return ""
	case o.OverlapCredit != nil:
		return "overlap_score_credit"
	case o.PrefillLoadScale != nil:
		return "prefill_load_scale"
	case o.OverlapWeight != nil:
		return "overlap_score_weight"
	}
	return ""
}

// apply writes the fields that are not nil into c. A nil Override changes nothing.
func (o *Override) apply(c *Config) {
	if o == nil {
		return
	}
	for _, f := range [...]struct {
		to   *float64
		from *float64
	}{
		{&c.OverlapCredit, o.OverlapCredit},
		{&c.PrefillLoadScale, o.PrefillLoadScale},
		{&c.Temperature, o.Temperature},
		{&c.SharedMultiplier, o.SharedMultiplier},
		{&c.OverlapWeight, o.OverlapWeight},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if o.Objective != nil {
		c.Objective = *o.Objective
	}
}

// Options configure a Scheduler. Its functions are called under the scheduler's
// lock and must not call the scheduler.
type Options struct {
	// Config says how workers are chosen; start from DefaultConfig.
	Config Config
	// Selector chooses; nil means a CostSelector. The scheduler owns the selector.
	Selector Selector
	// Load bounds the account. Load.Now is the clock of the scheduler too.
	Load load.Options
	// Busy are the thresholds beyond which a worker gets no requests.
	Busy BusyThresholds
	// Queue says when requests wait. With the zero value no request waits.
	Queue queue.Options
	// Estimator and Held are for the CostSelector: see CostOptions.
	Estimator Estimator
	Held      func(m *index.Members, member int) uint64
	// Members returns the current list of workers. A decision uses that list in place of the
	// request's older one. Nil uses the request's list.
	Members func() *index.Members
	// Worker describes a worker. It is called when the list of members changes and at
	// WorkersChanged. Nil knows nothing of any worker.
	Worker func(kv.Worker) WorkerConfig
	// PrefillDuration predicts how long a worker takes to compute tokens of a
	// prompt behind cached ones. Nil predicts nothing.
	PrefillDuration func(w kv.Worker, tokens, cached int) time.Duration
	// Refresh updates Members and Hits of a request that has waited for RefreshAfter; 0 means
	// 10 s. Nil updates no request.
	Refresh      func(*Request)
	RefreshAfter time.Duration
}

// Validate reports the first option that is out of range. New checks Load and Queue.
func (o *Options) Validate() error {
	if o.RefreshAfter < 0 {
		return fmt.Errorf("overlap refresh after: %v is negative", o.RefreshAfter)
	}
	return cmp.Or(o.Config.Validate(), o.Busy.Validate())
}

// withDefaults returns o with defaults in place of zero values.
func (o Options) withDefaults() Options {
	if o.Load.Now == nil {
		o.Load.Now = time.Now
	}
	o.RefreshAfter = cmp.Or(o.RefreshAfter, 10*time.Second)
	if o.Worker == nil {
		o.Worker = func(kv.Worker) WorkerConfig { return WorkerConfig{} }
	}
	return o
}
