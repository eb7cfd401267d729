package schedule

import (
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// weighing computes the costs of one decision in blocks. Every formula is
//
//	prefillWeight*max(0, raw/blockSize - credit) + max(0, decode - decodeCredit) + requestWeight*requests
//
// where raw is the tokens to compute, and a credit is what cached blocks are worth. The
// formulas differ in their parameters.
type weighing struct {
	in            *Selection
	prefillWeight float64
	requestWeight float64
	// blockSize is in tokens. promptBlocks and promptTokens are the length of the prompt.
	blockSize    float64
	promptBlocks float64
	promptTokens int64
	// addedBlocks is the number of blocks that the request keeps active on its worker.
	addedBlocks int32
	// tracksPrefill is true when the prompt counts as prefill load.
	tracksPrefill bool
	// overlapOnly is true for FormulaOverlapWeight. decodeOnly is true for decode workers
	// without tracked prefill.
	overlapOnly, decodeOnly bool
	// deviceCredit is the credit of a block on the device. tierWeight has the weight of a
	// block in each lower tier.
	deviceCredit float64
	tierWeight   [kv.NumTiers]float64
	// leastPrefill is the smallest prefill load of all candidates, for the decay.
	leastPrefill int64
	// sharedCache has the blocks of a cache beside the workers, nil without one.
	sharedCache *SharedHits
	// decays is true when the credit of a device block depends on the worker's load.
	// constantCredit is true when neither load nor a shared cache changes the credit.
	decays, constantCredit bool
}

// overlap is one worker's cached part of the prompt, in blocks. device counts the blocks on
// the device, or is the number from Request.Overlaps, which may be a fraction. lower is the
// weighted number of blocks in the lower tiers. effective is device + lower.
type overlap struct{ device, lower, effective float64 }

// newWeighing returns the parameters of the cost formula for one decision, from the
// configuration and the request of in. A credit is the blocks of prefill that cached blocks
// of the prompt save a worker.
func newWeighing(in *Selection) weighing {
	c, r := in.Config, in.Request
	w := weighing{
		in:            in,
		prefillWeight: c.PrefillLoadScale,
		requestWeight: c.ActiveRequestWeight,
		blockSize:     float64(r.BlockSize),
		promptBlocks:  float64(r.Blocks()),
		promptTokens:  int64(r.Tokens),
		addedBlocks:   int32(len(r.Sequence)),
		tracksPrefill: r.TrackPrefill,
		overlapOnly:   c.Formula == FormulaOverlapWeight,
		deviceCredit:  c.OverlapCredit,
		tierWeight:    [kv.NumTiers]float64{1, c.HostWeight, c.DiskWeight, c.external()},
	}
	if r.SharedHits != nil && c.SharedMultiplier > 0 {
		w.sharedCache = r.SharedHits
	}
	if w.overlapOnly { // the older formula has a weight of its own
		w.prefillWeight, w.requestWeight = c.OverlapWeight, 0
	} else {
		w.decodeOnly = c.DecodeWorkers && !w.tracksPrefill && c.OverlapCredit > 0
	}
	w.decays = w.tracksPrefill && c.CreditDecay > 0 && w.promptBlocks > 0 && !w.overlapOnly
	if w.decays { // the more a worker has pending beyond the least, the less its credit
		w.leastPrefill = w.smallestPrefill()
	}
	// Then weigh needs no call per candidate.
	w.constantCredit = w.tracksPrefill && w.sharedCache == nil && !w.decays && !w.overlapOnly
	return w
}

// smallestPrefill returns the smallest pending prefill of all candidates, in tokens. The credit
// of a worker decays with its pending prefill beyond that.
func (w *weighing) smallestPrefill() int64 {
	loads := w.in.Loads.PrefillTokens
	least := int64(math.MaxInt64)
	if w.in.Candidates == nil {
		for _, n := range loads {
			least = min(least, n)
		}
		return least
	}
	for _, m := range w.in.Candidates {
		least = min(least, loads[m])
	}
	return least
}

// overlapOfHits returns the cached part of the prompt for a worker with hits h, in blocks. A
// block below the device tier counts by the weight of its tier.
func (w *weighing) overlapOfHits(h *index.Hits) overlap {
	lower := w.tierWeight[kv.TierHost]*float64(h[kv.TierHost]) +
		w.tierWeight[kv.TierDisk]*float64(h[kv.TierDisk]) +
		w.tierWeight[kv.TierExternal]*float64(h[kv.TierExternal])
	device := float64(h[kv.TierDevice])
	return overlap{device, lower, device + lower}
}

// overlapOfBlocks returns the overlap for a number of blocks of Request.Overlaps.
func overlapOfBlocks(blocks float64) overlap {
	return overlap{blocks, 0, blocks}
}

// memberOverlap returns the cached part of the prompt on member m, in blocks: by
// Request.Hits, or by Request.Overlaps without hits.
func (w *weighing) memberOverlap(m int32) overlap {
	if len(w.in.Request.Hits) == 0 {
		return overlapOfBlocks(w.in.Request.overlapOf(m))
	}
	h := w.in.Request.hitsOf(m)
	return w.overlapOfHits(&h)
}

// credit returns the blocks that the formula subtracts from the prefill of member m, because
// they are cached. r is the cached part of the prompt on that member.
func (w *weighing) credit(m int, r overlap) float64 {
	beyond := 0.0 // blocks that only the shared cache has, weighted
	if w.sharedCache != nil {
		beyond = w.in.Config.SharedMultiplier * float64(w.sharedCache.Beyond(int(r.device)))
	}
	if w.overlapOnly { // addedTokens leaves out cached tokens already
		return beyond
	}
	decay := 1.0
	if w.decays {
		ahead := float64(w.in.Loads.PrefillTokens[m]-w.leastPrefill) / w.blockSize
		decay = 1 / (1 + w.in.Config.CreditDecay*ahead/w.promptBlocks)
	}
	return w.deviceCredit*decay*r.device + r.lower + beyond
}

// terms are the parts of the formula that do not depend on the load.
type terms struct {
	// tokens is the number of tokens that the request adds to the worker's prefill.
	tokens int64
	// credit and decodeCredit are in blocks.
	credit, decodeCredit float64
}

// termsOf returns the parts of member m's cost that cached blocks decide. r is the cached
// part of the prompt on that member.
func (w *weighing) termsOf(m int, r overlap) terms {
	t := terms{tokens: w.addedTokens(r), credit: w.credit(m, r)}
	if w.decodeOnly { // without prefill the credit reduces the decode load
		t.credit, t.decodeCredit = 0, t.credit
	}
	return t
}

// addedTokens returns the number of tokens that the request adds to the prefill load of a
// worker with overlap r. The result includes cached tokens, because the formula subtracts a
// credit for them. FormulaOverlapWeight has no such credit, so it gets no cached tokens.
func (w *weighing) addedTokens(r overlap) int64 {
	switch {
	case !w.tracksPrefill:
		return 0
	case w.overlapOnly:
		return max(0, w.promptTokens-w.cached(r))
	case r.effective*w.blockSize <= float64(w.promptTokens):
		return w.promptTokens
	}
	return w.cached(r) // an overlap longer than the prompt counts in full, like its credit
}

// cached returns the number of tokens that count as cached with overlap r.
func (w *weighing) cached(r overlap) int64 {
	return int64(CachedTokens(r.effective, w.in.Request.BlockSize))
}

// cost returns the cost of sending the request to a worker, and its parts. Unit: blocks. t
// are the parts that cached blocks decide. prefill is the worker's pending prefill in tokens.
// blocks counts the worker's active blocks with this request. requests counts the worker's
// requests without this request.
func (w *weighing) cost(t terms, prefill int64, blocks, requests int32) costParts {
	var p costParts
	if p.prefill = float64(prefill+t.tokens)/w.blockSize - t.credit; p.prefill < 0 || !w.tracksPrefill {
		p.prefill = 0
	}
	if p.decode = float64(blocks) - t.decodeCredit; p.decode < 0 {
		p.decode = 0
	}
	p.decode += w.requestWeight * float64(requests)
	p.total = w.prefillWeight*p.prefill + p.decode
	return p
}

// costParts is a cost and its parts, in blocks.
type costParts struct{ total, prefill, decode float64 }

// Estimator predicts what a request takes on each worker. It is called once per decision under the
// scheduler's lock: it must be quick, must not block and must not call the scheduler.
type Estimator interface {
	// Prices sets prices[k] to the price of candidate k, for all in.Len() candidates. Without a measure
	// ok is false, and why names the measure, such as "no prefill time of worker 7/0 yet". The decision
	// then falls back to weights. in and prices are valid only during the call.
	//
	// While an Estimator is in use, in.Loads counts for each booked request the tokens of its
	// prompt less LocalTokens.
	Prices(in *Selection, prices []price.Price) (why string, ok bool)
}

// LocalTokens returns how many tokens of a prompt a worker need not compute. They are the
// tokens of its hits in every tier but the external one. Nothing measures how long external
// blocks take, so they count as tokens to compute.
func LocalTokens(h index.Hits, blockSize int) int {
	return (int(h[kv.TierDevice]) + int(h[kv.TierHost]) + int(h[kv.TierDisk])) * blockSize
}

// bookedCached returns how many tokens of r's prompt need no computing on the chosen worker, for the
// booking, and which blocks of them another request computes. In price mode all local hits count in full,
// because blocks of lower tiers are loaded and not computed. With weights a hit counts by the weight of its
// tier.
func (s *Scheduler) bookedCached(r *Request, chosen *Result) (tokens int, awaited load.Awaited) {
	if !s.config.Price || s.options.Estimator == nil || len(r.Hits) == 0 && chosen.InFlight == 0 {
		return chosen.CachedTokens, load.Awaited{}
	}
	hits, expected := LocalTokens(chosen.Hits, r.BlockSize), LocalTokens(chosen.Expected(), r.BlockSize)
	return expected, load.Awaited{From: int32(hits / r.BlockSize), To: int32(expected / r.BlockSize)}
}
