package config

import (
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// applyWeight writes what OverlapScoreWeight means into the fields of today.
func (c *Config) applyWeight() {
	c.PrefillLoadScale, c.OverlapScoreCredit = c.prefillScale(), c.overlapCredit()
}

// prefillScale is PrefillLoadScale by whichever name it was given.
func (c *Config) prefillScale() float64 {
	if c.OverlapScoreWeight != nil {
		return *c.OverlapScoreWeight
	}
	return c.PrefillLoadScale
}

// overlapCredit is OverlapScoreCredit unless an overlap weight of 0 turns it off.
func (c *Config) overlapCredit() float64 {
	if c.OverlapScoreWeight != nil && *c.OverlapScoreWeight == 0 {
		return 0
	}
	return c.OverlapScoreCredit
}

// ShouldSubscribeToKVEvents reports whether the workers' events are needed: they
// are wanted, what is cached counts, and no other router's index is asked.
func (c *Config) ShouldSubscribeToKVEvents() bool {
	return c.UseKVEvents && c.overlapCredit() > 0 && !c.UseRemoteIndexer
}

// SequenceHashesForTracking are the blocks that count as active on a worker while
// it works on a prompt. tracked is false when none are to be counted at all; a
// prompt shorter than a block has none. Requests share them where KV reuse is
// assumed, by the override or else the config; otherwise they are random.
//
// lora and salt are the adapter's name and the cache namespace, empty for none.
// locals are the LocalHashes of the prompt where the caller has them; it must
// pass them for prompts with multimodal objects and for engines that cache token
// pairs. Otherwise they are nil and computed from tokens.
func (c *Config) SequenceHashesForTracking(tokens []uint32, blockSize int, o *Override, lora, salt string, locals []kv.LocalHash) (hashes []kv.SequenceHash, tracked bool) {
	if !c.RouterTrackActiveBlocks {
		return nil, false
	}
	reuse := c.RouterAssumeKVReuse
	if o != nil && o.AssumeKVReuse != nil {
		reuse = *o.AssumeKVReuse
	}
	if !reuse {
		n := len(locals)
		if locals == nil && blockSize > 0 {
			n = len(tokens) / blockSize
		}
		hashes = make([]kv.SequenceHash, n)
		for i := range hashes {
			hashes[i] = kv.SequenceHash(rand.Uint64())
		}
		return hashes, true
	}
	if locals == nil {
		var hasher kv.Hasher
		locals = hasher.AppendLocals(nil, tokens, blockSize, kv.LocalSeed(lora, salt))
	}
	return kv.AppendSequence(make([]kv.SequenceHash, 0, len(locals)), locals), true
}

// TrackPrefillTokens reports whether a request's prompt counts as prefill load, by
// its override or else the config. o may be nil.
func (c *Config) TrackPrefillTokens(o *Override) bool {
	if o != nil && o.TrackPrefillTokens != nil {
		return *o.TrackPrefillTokens
	}
	return c.RouterTrackPrefillTokens
}

// TTL is how long a guessed block is believed in, without events.
func (c *Config) TTL() time.Duration { return duration(c.RouterTTLSecs) }

// PredictedTTL is how long a request's blocks count as cached where it went before
// the events say so; ok is false when they do not.
func (c *Config) PredictedTTL() (ttl time.Duration, ok bool) {
	if c.RouterPredictedTTLSecs == nil {
		return 0, false
	}
	return duration(*c.RouterPredictedTTLSecs), true
}

// RequestExpiry is the silence after which a request is taken off the books.
func (c *Config) RequestExpiry() time.Duration { return max(1, duration(c.ActiveRequestExpirySecs)) }

// OverlapRefreshAfter is how long a request waits before what is cached is looked
// up again; 0 does not.
func (c *Config) OverlapRefreshAfter() time.Duration { return duration(c.OverlapRefreshAfterSecs) }

// SnapshotEvents is the number of events between two snapshots; ok is false when
// none are stored.
func (c *Config) SnapshotEvents() (events uint32, ok bool) {
	if c.RouterSnapshotEvents == nil {
		return 0, false
	}
	return *c.RouterSnapshotEvents, true
}

// InitialWorkers is how many workers to wait for at the start, 0 for none.
func (c *Config) InitialWorkers() int {
	if c.SkipInitialWorkerWait {
		return 0
	}
	return int(c.MinInitialWorkers)
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}

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
