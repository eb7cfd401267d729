package load

import (
	"math/bits"
	"time"
)

// prefill is the prompt work that one worker still has to do.
//
// The oldest request with work is the anchor: the worker is taken to have been
// at it since it became the anchor. When every request with work is modelled,
// the time since then runs down the whole backlog at the anchor's rate, so a
// request that takes longer than expected does not hold up the account. When
// some are not, only the anchor's own tokens run down.
type prefill struct {
	// requests have something to compute, and tokens is the sum of what each had to
	// compute at first.
	requests int
	tokens   int64
	// unmodelled is the number of requests without an expected duration.
	unmodelled int
	anchor     *request
	since      time.Duration
	// full and lasts are the anchor's tokens and expected duration: many workers
	// are read at once, and the requests lie elsewhere.
	full  int64
	lasts time.Duration
}

func (p *prefill) add(r *request, now time.Duration) {
	if r.prefill == 0 {
		return
	}
	p.requests++
	p.tokens += r.prefill
	if r.duration == 0 {
		p.unmodelled++
	}
	if p.anchor == nil {
		p.anchorAt(r, now)
	}
}

// anchorAt makes r, which may be nil, the anchor.
func (p *prefill) anchorAt(r *request, now time.Duration) {
	p.anchor, p.since, p.full, p.lasts = r, now, 0, 0
	if r != nil {
		p.full, p.lasts = r.prefill, r.duration
	}
}

// remove takes off a request that is still in its worker's list of running
// ones.
func (p *prefill) remove(r *request, now time.Duration) {
	if r.prefill == 0 {
		return
	}
	switch {
	case p.anchor == r:
		next := r.in[byArrival].next
		for next != nil && next.prefill == 0 {
			next = next.in[byArrival].next
		}
		p.anchorAt(next, now)
	case p.unmodelled == 0:
		// The worker did that one meanwhile and was not at the anchor.
		p.since = min(now, p.since+r.duration)
	}
	p.requests--
	p.tokens -= r.prefill
	if r.duration == 0 {
		p.unmodelled--
	}
	r.prefill, r.duration = 0, 0
}

// decays reports whether the remaining tokens change with time.
func (p *prefill) decays() bool { return p.lasts > 0 }

// remaining are the tokens still to be computed.
func (p *prefill) remaining(now time.Duration) int64 {
	if !p.decays() || now <= p.since {
		return p.tokens
	}
	limit := p.tokens
	if p.unmodelled > 0 {
		limit = p.full
	}
	hi, lo := bits.Mul64(uint64(p.full), uint64(now-p.since))
	if hi >= uint64(p.lasts) {
		return p.tokens - limit
	}
	done, _ := bits.Div64(hi, lo, uint64(p.lasts))
	return p.tokens - int64(min(done, uint64(limit)))
}
