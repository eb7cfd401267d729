package load

import (
	"math/bits"
	"time"
)

// prefill is the prompt work that one worker still has to do.
//
// The oldest request with work is the anchor. The worker is assumed to work on the
// anchor since the request became the anchor. If every request with work has an
// expected duration, the time since then reduces the whole backlog at the anchor's
// rate. So a request that takes longer than expected does not block the account.
// Otherwise only the anchor's own tokens run down.
type prefill struct {
	// requests counts the requests with work. tokens is the sum of their initial
	// tokens.
	requests int
	tokens   int64
	// unmodelled is the number of requests without an expected duration.
	unmodelled  int
	anchor      *request
	anchorSince time.Duration
	// anchorTokens and anchorDuration are copies of the anchor's tokens and expected duration.
	// A decision reads many workers, and the requests are scattered in memory.
	anchorTokens   int64
	anchorDuration time.Duration
}

// add counts the prompt tokens of a request that its worker gets now. A request without prompt
// tokens is ignored. An idle worker begins with the request: it is the anchor.
func (p *prefill) add(r *request, now time.Duration) {
	if r.prefillTokens == 0 {
		return
	}
	p.requests++
	p.tokens += r.prefillTokens
	if r.prefillDuration == 0 {
		p.unmodelled++
	}
	if p.anchor == nil {
		p.setAnchor(r, now)
	}
}

// setAnchor makes r the anchor: the request that the worker is assumed to compute from now on; nil
// is none.
func (p *prefill) setAnchor(r *request, now time.Duration) {
	p.anchor, p.anchorSince, p.anchorTokens, p.anchorDuration = r, now, 0, 0
	if r != nil {
		p.anchorTokens, p.anchorDuration = r.prefillTokens, r.prefillDuration
	}
}

// remove removes the prompt tokens of r, if any are left: r has begun to generate or has ended. r
// must still be in its worker's list of active requests, because the next anchor is the next
// request in that list.
func (p *prefill) remove(r *request, now time.Duration) {
	if r.prefillTokens == 0 {
		return
	}
	switch {
	case p.anchor == r:
		next := r.links[byArrival].next
		for next != nil && next.prefillTokens == 0 {
			next = next.links[byArrival].next
		}
		p.setAnchor(next, now)
	case p.unmodelled == 0:
		// The worker computed r meanwhile, and not the anchor. So the anchor's time begins
		// later, by the duration of r.
		p.anchorSince = min(now, p.anchorSince+r.prefillDuration)
	}
	p.requests--
	p.tokens -= r.prefillTokens
	if r.prefillDuration == 0 {
		p.unmodelled--
	}
	r.prefillTokens, r.prefillDuration = 0, 0
}

// move adds n tokens that another request leaves to those of r. A request without tokens left computes none.
func (p *prefill) move(r *request, n int64) {
	r.movedTokens += n
	if r.prefillTokens > 0 {
		p.grow(r, n)
	}
}

// grow adds n tokens to those of r, which has some left. Its expected duration grows in proportion.
func (p *prefill) grow(r *request, n int64) {
	p.tokens += n
	if r.prefillDuration > 0 {
		longer := float64(r.prefillDuration) * float64(n) / float64(r.prefillTokens)
		r.prefillDuration += time.Duration(min(longer, float64(maxGrowth)))
	}
	r.prefillTokens += n
	if p.anchor == r {
		p.anchorTokens, p.anchorDuration = r.prefillTokens, r.prefillDuration
	}
}

// maxGrowth bounds what grow adds to a duration, so that sums do not overflow.
const maxGrowth = 24 * time.Hour

// decays reports whether the remaining tokens change with time.
func (p *prefill) decays() bool { return p.anchorDuration > 0 }

// remaining returns the number of prompt tokens that still have to be computed at time now. The
// anchor is the request that the worker is assumed to compute since p.anchorSince, at the rate
// anchorTokens in anchorDuration. All tokens run down at that rate, or only the anchor's if the
// expected duration of some request is unknown.
func (p *prefill) remaining(now time.Duration) int64 {
	if !p.decays() || now <= p.anchorSince {
		return p.tokens
	}
	limit := p.tokens // the tokens that run down
	if p.unmodelled > 0 {
		limit = p.anchorTokens
	}
	hi, lo := bits.Mul64(uint64(p.anchorTokens), uint64(now-p.anchorSince)) // the product may exceed 64 bits
	if hi >= uint64(p.anchorDuration) {
		return p.tokens - limit // the quotient exceeds 64 bits, and so limit
	}
	done, _ := bits.Div64(hi, lo, uint64(p.anchorDuration))
	return p.tokens - int64(min(done, uint64(limit)))
}
