package config

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// applyWeight applies OverlapScoreWeight to PrefillLoadScale and OverlapScoreCredit.
func (c *Config) applyWeight() {
	c.PrefillLoadScale, c.OverlapScoreCredit = c.prefillScale(), c.overlapCredit()
}

// prefillScale returns OverlapScoreWeight, or PrefillLoadScale without one.
func (c *Config) prefillScale() float64 {
	if c.OverlapScoreWeight != nil {
		return *c.OverlapScoreWeight
	}
	return c.PrefillLoadScale
}

// overlapCredit returns OverlapScoreCredit, or 0 with an OverlapScoreWeight of 0.
func (c *Config) overlapCredit() float64 {
	if c.OverlapScoreWeight != nil && *c.OverlapScoreWeight == 0 {
		return 0
	}
	return c.OverlapScoreCredit
}

// ShouldSubscribeToKVEvents reports whether the router needs the workers' events: events are
// on, cached blocks have a credit, and the index is this router's own.
func (c *Config) ShouldSubscribeToKVEvents() bool {
	return c.UseKVEvents && c.overlapCredit() > 0 && !c.UseRemoteIndexer
}

// SequenceHashesForTracking returns the blocks that count as active on a worker while the
// worker runs a request. tracked is false when the router does not track active blocks. With
// KV reuse, by the override or else the config, equal blocks of several requests have equal
// hashes. Without KV reuse the hashes are random.
//
// lora and salt are the adapter's name and the cache namespace; both may be empty. locals
// are the LocalHashes of the prompt. With nil they are computed from tokens. Callers must
// pass locals for prompts with multimodal objects and for engines that cache token pairs.
func (c *Config) SequenceHashesForTracking(tokens []uint32, blockSize int, o *Override, lora, salt string, locals []kv.LocalHash) (hashes []kv.SequenceHash, tracked bool) {
	if !c.RouterTrackActiveBlocks {
		return nil, false
	}
	reuse := c.RouterAssumeKVReuse
	if o != nil && o.AssumeKVReuse != nil {
		reuse = *o.AssumeKVReuse
	}
	if !reuse { // random hashes, so that no two requests share a block
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

// TrackPrefillTokens reports whether a request's prompt counts as prefill load. The override
// wins over the config. o may be nil.
func (c *Config) TrackPrefillTokens(o *Override) bool {
	if o != nil && o.TrackPrefillTokens != nil {
		return *o.TrackPrefillTokens
	}
	return c.RouterTrackPrefillTokens
}

// TTL returns how long a predicted block counts as cached, without events.
func (c *Config) TTL() time.Duration { return duration(c.RouterTTLSecs) }

// PredictedTTL returns how long the router predicts, until events confirm them, that a
// request's blocks are cached on its worker. ok is false if it makes no such predictions.
func (c *Config) PredictedTTL() (ttl time.Duration, ok bool) {
	if c.RouterPredictedTTLSecs == nil {
		return 0, false
	}
	return duration(*c.RouterPredictedTTLSecs), true
}

// RequestExpiry returns the silence after which a request expires.
func (c *Config) RequestExpiry() time.Duration { return max(1, duration(c.ActiveRequestExpirySecs)) }

// OverlapRefreshAfter returns the wait after which a request's hits are looked up again; 0
// means never.
func (c *Config) OverlapRefreshAfter() time.Duration { return duration(c.OverlapRefreshAfterSecs) }

// SnapshotEvents returns the number of events between two snapshots. ok is false without
// snapshots.
func (c *Config) SnapshotEvents() (events uint32, ok bool) {
	if c.RouterSnapshotEvents == nil {
		return 0, false
	}
	return *c.RouterSnapshotEvents, true
}

// InitialWorkers returns how many workers to wait for at the start.
func (c *Config) InitialWorkers() int {
	if c.SkipInitialWorkerWait {
		return 0
	}
	return int(c.MinInitialWorkers)
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}

// Schedule returns the part of the configuration that package schedule needs: how costs are
// computed and workers are chosen.
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
	s.Price, s.Objective = c.Score == ScorePrice, objectiveOf(c.Objective)
	return s
}

// objectiveOf returns the objective of a name, which is one of Objectives.
func objectiveOf(name string) price.Objective {
	return price.Objective(slices.Index(Objectives, name))
}

// Schedule returns the scheduler's override for one request, nil for nil.
func (o *Override) Schedule() *schedule.Override {
	if o == nil {
		return nil
	}
	credit, scale := o.weights()
	out := &schedule.Override{
		OverlapCredit: credit, PrefillLoadScale: scale, OverlapWeight: scale,
		Temperature: o.RouterTemperature, SharedMultiplier: o.SharedCacheMultiplier,
	}
	if o.Objective != nil {
		objective := objectiveOf(*o.Objective)
		out.Objective = &objective
	}
	return out
}

// Load returns the bounds of the account of requests.
func (c *Config) Load() load.Options {
	return load.Options{Expiry: c.RequestExpiry(), MaxRequests: int(c.MaxActiveRequests)}
}

// Queue returns the options of the queue. profile is that of RouterPolicyConfig; nil is none. The
// discipline must be valid.
func (c *Config) Queue(profile *queue.Profile) queue.Options {
	o := queue.Options{Profile: profile, Class: queue.Class{Threshold: c.RouterQueueThreshold,
		Discipline: queue.Discipline(slices.Index(queue.Disciplines, c.RouterQueuePolicy))}}
	if c.Score == ScorePrice {
		o.MaxWait = duration(c.QueueMaxWaitSecs)
	}
	return o
}

// Busy returns the thresholds above which a worker gets no requests. A nil threshold does not
// apply.
func (c *Config) Busy() schedule.BusyThresholds {
	b := schedule.BusyThresholds{DecodeBlocks: c.ActiveDecodeBlocksThreshold, PrefillFraction: c.ActivePrefillTokensThresholdFrac}
	if c.ActivePrefillTokensThreshold != nil {
		tokens := int64(*c.ActivePrefillTokensThreshold)
		b.PrefillTokens = &tokens
	}
	return b
}

// Index returns the bounds of the index. With PredictedTTL a quarter of the memory is for
// predictions.
func (c *Config) Index() index.Options {
	return index.Options{MaxBytes: int64(c.IndexMemoryBytes) - c.predictedBytes()}
}

// predictedBytes returns the memory of the index of predictions, 0 without one.
func (c *Config) predictedBytes() int64 {
	if _, ok := c.PredictedTTL(); !ok {
		return 0
	}
	return int64(c.IndexMemoryBytes) / 4
}

// Reading returns the rule for blocks in several tiers.
func (c *Config) Reading() index.Reading {
	if c.IndexReading == ReadingUnion {
		return index.Union
	}
	return index.Continuation
}

// Approx returns the options of the index that predicts blocks without events.
func (c *Config) Approx() approx.Options {
	return approx.Options{
		TTL: c.TTL(), MaxBlocks: int(c.RouterMaxTreeSize), PruneRatio: c.RouterPruneTargetRatio, Index: c.Index(),
	}
}

// Guesses reports whether the router predicts blocks from its decisions.
func (c *Config) Guesses() bool {
	_, predicted := c.PredictedTTL()
	return (predicted || !c.UseKVEvents) && c.overlapCredit() != 0
}

// Predicted returns the options of the index that predicts blocks until events come. ok is
// false without such an index.
func (c *Config) Predicted() (o approx.Options, ok bool) {
	ttl, ok := c.PredictedTTL()
	if !ok {
		return approx.Options{}, false
	}
	o = c.Approx()
	o.TTL, o.Index.MaxBytes = ttl, c.predictedBytes()
	return o, true
}

// PredictedSilent returns the options of the index that predicts what workers without events
// hold, while other workers publish events. ok is false when the router needs no such index.
// Its memory comes on top of the other indexes, and is a quarter of index_memory_bytes.
func (c *Config) PredictedSilent() (o approx.Options, ok bool) {
	if !c.ShouldSubscribeToKVEvents() || c.RouterMode != ModeKV {
		return approx.Options{}, false
	}
	o = c.Approx()
	o.Index.MaxBytes = int64(c.IndexMemoryBytes) / 4
	return o, true
}

// SessionTTL returns the silence after which a session may leave its worker; 0 keeps no
// sessions together.
func (c *Config) SessionTTL() time.Duration {
	if c.SessionAffinityTTLSecs == nil {
		return 0
	}
	return time.Duration(*c.SessionAffinityTTLSecs) * time.Second
}

// Disaggregation is how requests are divided between prefill and decode workers.
type Disaggregation struct {
	// MinTokens is the number of uncached prompt tokens from which on a request is divided.
	MinTokens int
	// Timeout bounds a prefill, Wait how long a decode worker waits for the blocks.
	Timeout, Wait time.Duration
	// Conditional has decode workers compute prompts by the fields below. Bounds says that
	// prompts with fewer uncached tokens than Tokens and a smaller share than Ratio do.
	Conditional, Bounds bool
	Tokens              int
	Ratio               float64
	// PrefillBusy and DecodeBusy are shares of a step's tokens; nil is no limit.
	PrefillBusy, DecodeBusy *float64
}

// Disaggregation returns how requests are divided between prefill and decode workers.
func (c *Config) Disaggregation() Disaggregation {
	a := Disaggregation{MinTokens: int(c.PrefillMinTokens), Timeout: max(1, duration(c.PrefillTimeoutSecs)),
		Wait: duration(c.HandOverWaitSecs).Round(time.Millisecond)}
	if !c.ConditionalDisaggEnabled {
		return a
	}
	a.Conditional, a.Tokens, a.Ratio = true, int(c.ConditionalDisaggEffISLThreshold), c.ConditionalDisaggEffISLRatioThreshold
	a.Bounds = c.ConditionalDisaggPolicy != disaggLoad
	if c.ConditionalDisaggPolicy != disaggBounding {
		a.PrefillBusy = cmp.Or(c.ConditionalDisaggPrefillBusyThreshold, c.RouterQueueThreshold)
		a.DecodeBusy = c.ConditionalDisaggDecodeBusyThreshold
	}
	return a
}
