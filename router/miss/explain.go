package miss

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Prompt is what the router knew of a prompt when it decided.
type Prompt struct {
	Tokens, BlockSize int
	// Blocks are the prompt's full blocks.
	Blocks []kv.SequenceHash
	// Worker is the chosen worker, Pool the id of its pool, 0 for none. Hits are its blocks.
	Worker kv.Worker
	Pool   uint64
	Hits   index.Hits
	// Best is the other worker with most blocks of the prompt, and BestBlocks how many it has.
	Best       kv.Worker
	BestBlocks int
	Decided    time.Time
}

// Outcome is what became of a prompt.
type Outcome struct {
	// Predicted tokens are those that the router expected the engine to have cached, Delivered those
	// that it reported. At most Cacheable tokens can be cached: an engine computes the last token.
	Predicted, Delivered, Cacheable int
	// Reported is the length of the prompt in the engine's tokens, 0 when unknown.
	Reported int
	// Unsure is the reason why the prediction is a guess; None for an exact one.
	Unsure Cause
	// Computed is when the prompt had been computed, or later.
	Computed time.Time
}

// Report explains the tokens of one prompt.
type Report struct {
	// Parts are the tokens that were not delivered, by cause. Tokens that were predicted come first.
	Parts []Part
	// Difference explains the tokens by which delivered and predicted differ. Its Tokens are below
	// 0 when fewer were delivered.
	Difference Part
}

// Explain says why tokens of a prompt were not delivered from a cache. Call it a little after the
// answer: events that tell of the causes may come later than the answer.
func (h *History) Explain(p *Prompt, o *Outcome) Report {
	var r Report
	from := min(o.Delivered, p.Tokens)
	switch by := o.Delivered - o.Predicted; {
	case by < 0:
		lost := h.undelivered(p, o)
		lost.Tokens = -by
		r.Parts = add(r.Parts, lost)
		r.Difference, from = lost, min(o.Predicted, p.Tokens)
		r.Difference.Tokens = by
	case by > 0:
		r.Difference = h.unpredicted(p, o)
		r.Difference.Tokens = by
	}
	if o.Unsure == ApproximateTokens || o.Unsure == HandOver {
		r.Parts = add(r.Parts, Part{Cause: o.Unsure, Tokens: p.Tokens - from})
		return r
	}
	r.Parts = h.uncached(r.Parts, p, from, o.Cacheable)
	return r
}

// mine reports whether an owner is the chosen worker or its pool.
func (p *Prompt) mine(o kv.Owner) bool {
	return o == kv.WorkerOwner(p.Worker) || p.Pool != 0 && o == kv.PoolOwner(p.Pool)
}

// tierOf returns the tier in which the router expected a block on the worker.
func (p *Prompt) tierOf(block int) kv.Tier {
	for t, n := range p.Hits {
		if block -= int(n); block < 0 {
			return kv.Tier(t)
		}
	}
	return kv.TierDevice
}

// undelivered says why predicted tokens were not delivered. An engine loads a prefix, so the first
// block that it lacked decides for all.
func (h *History) undelivered(p *Prompt, o *Outcome) Part {
	if o.Unsure != None {
		return Part{Cause: o.Unsure}
	}
	if o.Reported != 0 && o.Reported != p.Tokens {
		return Part{Cause: TokensDiffer}
	}
	if o.Delivered == p.Tokens-1 { // a load within a step leaves the last token to the step
		return Part{Cause: LastBlock}
	}
	first := o.Delivered / p.BlockSize
	tier, holder := p.tierOf(first), kv.WorkerOwner(p.Worker)
	if tier != kv.TierDevice && p.Pool != 0 {
		holder = kv.PoolOwner(p.Pool)
	}
	for _, o := range []kv.Owner{kv.WorkerOwner(p.Worker), holder} {
		if at, ok := h.droppedSince(o, p.Decided); ok {
			return Part{Cause: Restarted, Owner: o, Tier: tier, Ago: p.Decided.Sub(at)}
		}
	}
	if first < len(p.Blocks) {
		left, ok := h.last(p.Blocks[first], func(d *departure) bool {
			return p.mine(d.owner) && d.tier == tier && !d.at.Before(p.Decided) && !d.published().After(o.Computed.Add(Resolution))
		})
		switch {
		case ok && left.published().Add(Resolution).Before(p.Decided):
			return Part{Cause: IndexBehind, Owner: left.owner, Tier: tier, Behind: p.Decided.Sub(left.published())}
		case ok:
			return Part{Cause: Evicted, Owner: left.owner, Tier: tier, Ago: p.Decided.Sub(left.published())}
		}
	}
	if tier != kv.TierDevice {
		return Part{Cause: TierSlow, Owner: holder, Tier: tier}
	}
	return Part{Cause: TokensDiffer, Owner: holder, Tier: tier} // the worker still has the block
}

// unpredicted says why the engine had more cached than predicted.
func (h *History) unpredicted(p *Prompt, o *Outcome) Part {
	if o.Unsure != None {
		return Part{Cause: o.Unsure}
	}
	if first := o.Predicted / p.BlockSize; first < len(p.Blocks) {
		if s, ok := h.storedLate(p.Blocks[first], p.Decided, func(d *departure) bool { return p.mine(d.owner) }); ok {
			return Part{Cause: IndexBehind, Owner: s.owner, Tier: s.tier, Behind: p.Decided.Sub(s.published())}
		}
	}
	return Part{Cause: StoredMeanwhile, Owner: kv.WorkerOwner(p.Worker)}
}

// maxUnknown is after how many unknown blocks in a row the rest of a prompt counts as new. A block
// may be forgotten while the next ones are remembered.
const maxUnknown = 16

// uncached adds parts for the tokens of a prompt from a token on: where they could have come from.
func (h *History) uncached(parts []Part, p *Prompt, from, cacheable int) []Part {
	blocks := min(len(p.Blocks), cacheable/p.BlockSize)
	unknown := 0 // tokens of unknown blocks before the current one
	for i := from / p.BlockSize; i < blocks && unknown < maxUnknown*p.BlockSize; i++ {
		end := (i + 1) * p.BlockSize
		part := h.known(p, i)
		if part.Cause == None {
			unknown += end - from
		} else {
			// Without the unknown blocks before it this block could not have been cached.
			part.Tokens, unknown = unknown+end-from, 0
			parts = add(parts, part)
		}
		from = end
	}
	if rest := blocks * p.BlockSize; rest > from {
		unknown, from = unknown+rest-from, rest
	}
	parts = add(parts, Part{Cause: NewContent, Tokens: unknown})
	return add(parts, Part{Cause: LastBlock, Tokens: p.Tokens - from})
}

// known says where a block could have come from, with the cause None when nothing is known of the
// block.
func (h *History) known(p *Prompt, block int) Part {
	if block < p.BestBlocks {
		return Part{Cause: Elsewhere, Owner: kv.WorkerOwner(p.Best)}
	}
	hash := p.Blocks[block]
	if s, ok := h.storedLate(hash, p.Decided, func(d *departure) bool { return !p.mine(d.owner) }); ok {
		return Part{Cause: IndexBehind, Owner: s.owner, Tier: s.tier, Behind: p.Decided.Sub(s.published())}
	}
	left, ok := h.last(hash, func(d *departure) bool { return !d.at.After(p.Decided) })
	switch {
	case !ok:
		return Part{}
	case left.dropped:
		return Part{Cause: Restarted, Owner: left.owner, Tier: left.tier, Ago: p.Decided.Sub(left.at)}
	}
	return Part{Cause: Evicted, Owner: left.owner, Tier: left.tier, Ago: p.Decided.Sub(left.published())}
}
