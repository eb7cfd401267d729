package schedule

import (
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// weighing computes the costs of one decision in blocks. Every formula is
//
//	weight*max(0, raw/blockSize - credit) + max(0, decode - decodeCredit) + perRequest*requests
//
// with raw the tokens to compute, and the formulas differ in what they take for
// these.
type weighing struct {
	in         *Selection
	weight     float64
	perRequest float64
	blockSize  float64
	blocks     float64
	tokens     int64
	// sequence is the number of blocks that the request keeps active.
	sequence int32
	track    bool
	// overlapOnly is FormulaOverlapWeight, decodeOnly the variant of decode workers.
	overlapOnly, decodeOnly bool
	// device and tier are what a hit is worth in credit.
	device float64
	tier   [kv.NumTiers]float64
	// least is the smallest prefill load of all candidates, for the decay.
	least  int64
	shared *SharedHits
	// decays says that what a hit is worth depends on the worker's load, and plain
	// that its credit is its weight and nothing else.
	decays, plain bool
}

// reach is what one worker has of the prompt. whole are blocks in the device,
// which an old caller may give as a fraction.
type reach struct{ whole, lower, effective float64 }

func newWeighing(in *Selection) weighing {
	c, r := in.Config, in.Request
	w := weighing{
		in:          in,
		weight:      c.PrefillLoadScale,
		perRequest:  c.ActiveRequestWeight,
		blockSize:   float64(r.BlockSize),
		blocks:      float64(r.Blocks()),
		tokens:      int64(r.Tokens),
		sequence:    int32(len(r.Sequence)),
		track:       r.TrackPrefill,
		overlapOnly: c.Formula == FormulaOverlapWeight,
		device:      c.OverlapCredit,
		tier:        [kv.NumTiers]float64{1, c.HostWeight, c.DiskWeight, c.external()},
	}
	if r.SharedHits != nil && c.SharedMultiplier > 0 {
		w.shared = r.SharedHits
	}
	if w.overlapOnly {
		w.weight, w.perRequest = c.OverlapWeight, 0
	} else {
		w.decodeOnly = c.DecodeWorkers && !w.track && c.OverlapCredit > 0
	}
	if w.decays = w.track && c.CreditDecay > 0 && w.blocks > 0 && !w.overlapOnly; w.decays {
		w.least = w.leastPrefill()
	}
	w.plain = w.track && w.shared == nil && !w.decays && !w.overlapOnly
	return w
}

func (w *weighing) leastPrefill() int64 {
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

// reachOf reads a hit.
func (w *weighing) reachOf(h *index.Hits) reach {
	lower := w.tier[kv.TierHost]*float64(h[kv.TierHost]) +
		w.tier[kv.TierDisk]*float64(h[kv.TierDisk]) +
		w.tier[kv.TierExternal]*float64(h[kv.TierExternal])
	whole := float64(h[kv.TierDevice])
	return reach{whole, lower, whole + lower}
}

// overlapReach reads what a caller gives who knows of no tiers.
func overlapReach(blocks float64) reach {
	return reach{blocks, 0, blocks}
}

// reachOfMember is what member m has.
func (w *weighing) reachOfMember(m int32) reach {
	if len(w.in.Request.Hits) == 0 {
		return overlapReach(w.in.Request.overlapOf(m))
	}
	h := w.in.Request.hitsOf(m)
	return w.reachOf(&h)
}

// credit is what the formula takes off the prefill of member m.
func (w *weighing) credit(m int, r reach) float64 {
	beyond := 0.0
	if w.shared != nil {
		beyond = w.in.Config.SharedMultiplier * float64(w.shared.Beyond(int(r.whole)))
	}
	if w.overlapOnly {
		return beyond
	}
	decay := 1.0
	if w.decays {
		ahead := float64(w.in.Loads.PrefillTokens[m]-w.least) / w.blockSize
		decay = 1 / (1 + w.in.Config.CreditDecay*ahead/w.blocks)
	}
	return w.device*decay*r.whole + r.lower + beyond
}

// terms are the parts of the formula that depend on the request and its hits but
// not on the load: the tokens that it adds, and what is taken off.
type terms struct {
	own                  int64
	credit, decodeCredit float64
}

func (w *weighing) termsOf(m int, r reach) terms {
	t := terms{own: w.own(r), credit: w.credit(m, r)}
	if w.decodeOnly {
		t.credit, t.decodeCredit = 0, t.credit
	}
	return t
}

// own is how many tokens the request adds to a worker's prefill. Cached tokens
// are added back where the credit takes off what they are worth, which need not
// be one block per block.
func (w *weighing) own(r reach) int64 {
	switch {
	case !w.track:
		return 0
	case w.overlapOnly:
		return max(0, w.tokens-w.cached(r))
	case r.effective*w.blockSize <= float64(w.tokens):
		return w.tokens
	}
	return w.cached(r)
}

func (w *weighing) cached(r reach) int64 {
	return int64(CachedTokens(r.effective, w.in.Request.BlockSize))
}

// price is what a worker comes to that has prefill tokens pending, and keeps
// blocks active with this request and requests without it.
func (w *weighing) price(t terms, prefill int64, blocks, requests int32) price {
	var p price
	if p.prefill = float64(prefill+t.own)/w.blockSize - t.credit; p.prefill < 0 || !w.track {
		p.prefill = 0
	}
	if p.decode = float64(blocks) - t.decodeCredit; p.decode < 0 {
		p.decode = 0
	}
	p.decode += w.perRequest * float64(requests)
	p.cost = w.weight*p.prefill + p.decode
	return p
}

// price is a cost and its parts, in blocks.
type price struct{ cost, prefill, decode float64 }
