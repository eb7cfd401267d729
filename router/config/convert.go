package config

import (
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Schedule says how workers are weighed and chosen.
func (c *Config) Schedule() schedule.Config {
	s := schedule.DefaultConfig()
	if c.CostFormula == FormulaOverlapWeight {
		s.Formula = schedule.FormulaOverlapWeight
	}
	s.OverlapCredit, s.CreditDecay = c.overlapCredit(), c.OverlapScoreCreditDecay
	s.PrefillLoadScale, s.OverlapWeight = c.prefillScale(), c.prefillScale()
	s.ActiveRequestWeight = c.DecodeActiveRequestWeight
	s.HostWeight, s.DiskWeight, s.ExternalWeight = c.HostCacheHitWeight, c.DiskCacheHitWeight, c.ExternalCacheHitWeight
	s.SharedMultiplier = c.SharedCacheMultiplier
	s.DecodeWorkers = c.WorkerType == WorkerDecode
	s.Temperature, s.Seed = c.RouterTemperature, c.Seed
	if c.FirstOfEqual {
		s.Tie = schedule.TieFirst
	}
	s.Cost = c.Score == ScoreCost
	return s
}

// Schedule is the same for one request; nil stays nil.
func (o *Override) Schedule() *schedule.Override {
	if o == nil {
		return nil
	}
	credit, scale := o.weights()
	return &schedule.Override{
		OverlapCredit: credit, PrefillLoadScale: scale, OverlapWeight: scale,
		Temperature: o.RouterTemperature, SharedMultiplier: o.SharedCacheMultiplier,
	}
}

// Load bounds the account of requests.
func (c *Config) Load() load.Options {
	return load.Options{Expiry: c.RequestExpiry(), MaxRequests: int(c.MaxActiveRequests)}
}

// Queue says when requests wait.
func (c *Config) Queue() schedule.QueueOptions {
	return schedule.QueueOptions{Threshold: c.RouterQueueThreshold}
}

// Busy says from when on a worker gets no requests.
func (c *Config) Busy() schedule.BusyThresholds {
	b := schedule.BusyThresholds{DecodeBlocks: c.ActiveDecodeBlocksThreshold, PrefillFraction: c.ActivePrefillTokensThresholdFrac}
	if c.ActivePrefillTokensThreshold != nil {
		tokens := int64(*c.ActivePrefillTokensThreshold)
		b.PrefillTokens = &tokens
	}
	return b
}

// Index bounds the index by its memory, of which the index of predictions takes a
// quarter where there is one.
func (c *Config) Index() index.Options {
	return index.Options{MaxBytes: int64(c.IndexMemoryBytes) - c.predictedBytes()}
}

func (c *Config) predictedBytes() int64 {
	if _, ok := c.PredictedTTL(); !ok {
		return 0
	}
	return int64(c.IndexMemoryBytes) / 4
}

// Reading says how blocks in several tiers count.
func (c *Config) Reading() index.Reading {
	if c.IndexReading == ReadingUnion {
		return index.Union
	}
	return index.Continuation
}

// Approx are the options of the index of guesses that stands in for events.
func (c *Config) Approx() approx.Options {
	return approx.Options{
		TTL: c.TTL(), MaxBlocks: int(c.RouterMaxTreeSize), PruneRatio: c.RouterPruneTargetRatio, Index: c.Index(),
	}
}

// Guesses reports whether routing decisions are remembered as guesses.
func (c *Config) Guesses() bool {
	_, predicted := c.PredictedTTL()
	return (predicted || !c.UseKVEvents) && c.overlapCredit() != 0
}

// Predicted are the options of the index that guesses beside the events; ok is
// false when there is none.
func (c *Config) Predicted() (o approx.Options, ok bool) {
	ttl, ok := c.PredictedTTL()
	if !ok {
		return approx.Options{}, false
	}
	o = c.Approx()
	o.TTL, o.Index.MaxBytes = ttl, c.predictedBytes()
	return o, true
}
