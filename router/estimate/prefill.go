package estimate

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

const (
	// maxPending bounds the followed prefills of one worker.
	maxPending = 1024
	// maxPrefill is how long a silent prefill is followed.
	maxPrefill = 5 * time.Minute
	// smallFactor is how much smaller than MinTokens requests must be to show the
	// fixed cost. Closer to MinTokens their tokens take as long.
	smallFactor = 4
)

// Booking is a request that was sent to a worker.
type Booking struct {
	ID     string
	Worker kv.Worker
	// Tokens is the length of the prompt. Hits is what the worker has of it, in
	// blocks of BlockSize tokens.
	Tokens, BlockSize int
	Hits              index.Hits
	// Untracked says that the prefill is not on the scheduler's account.
	Untracked bool
}

// pending is a request without a first token.
type pending struct {
	id     string
	worker *worker
	tokens int // to be computed
	// account is the tokens on the scheduler's account.
	account int64
	booked  time.Time
	ready   time.Time // when its blocks should have arrived
	// external says that an unknown part of tokens is not computed, because
	// external blocks may come.
	external bool
}

// batch is what was computed in a time.
type batch struct{ tokens, requests, seconds float64 }

// prefills follows the pending prefills of one worker and learns its rate.
type prefills struct {
	// rate is tokens per second. requests is requests per second of those with next
	// to nothing to compute. fewTokens is their mean number of tokens.
	rate, requests rate
	fewTokens      float64

	pending []*pending // in the order of booking
	// tokens and followed are the sums of tokens and account of pending. large is
	// how many have MinTokens or more.
	tokens, large int
	followed      int64
	// settled is the time until which busy time has been counted.
	settled time.Time
	// batch is what was computed since the last sample.
	batch batch
	// mean is the moving mean of the tokens of a request.
	mean float64
}

// takeSample is called with a sample of a rate.
type takeSample func(*rate, sample)

// add follows a request.
func (p *prefills) add(r *pending, o *Options) {
	p.pending = append(p.pending, r)
	p.tokens += r.tokens
	p.followed += r.account
	if r.tokens >= o.MinTokens {
		p.large++
	}
	p.mean = movingMean(p.mean, float64(r.tokens))
}

// movingMean returns a mean with one more value. A mean of 0 has no values yet.
func movingMean(mean, v float64) float64 {
	if mean == 0 {
		return v
	}
	return mean + (v-mean)/maxSamples
}

// each returns the fixed cost of a request in seconds, 0 when unknown: the time of
// requests with next to no tokens, less the time of these tokens.
func (p *prefills) each(o *Options, now time.Time) float64 {
	if !p.requests.holds(o, now) || !p.rate.holds(o, now) {
		return 0
	}
	return max(0, 1/p.requests.value-p.fewTokens/p.rate.value)
}

// first returns the pending request whose blocks arrive first, or nil.
func (p *prefills) first() *pending {
	var first *pending
	for _, r := range p.pending {
		if first == nil || r.ready.Before(first.ready) {
			first = r
		}
	}
	return first
}

// busySince returns the time since which the worker has been computing uncounted
// tokens. At least one request is pending.
func (p *prefills) busySince() time.Time {
	if at := p.first().ready; !at.Before(p.settled) {
		return at
	}
	return p.settled
}

// count adds the busy time until now to the batch. A batch that is large enough
// ends before that.
func (p *prefills) count(o *Options, now time.Time, take takeSample) {
	if d := now.Sub(p.busySince()); d > 0 {
		p.endBatch(o, now, false, take)
		p.batch.seconds += d.Seconds()
	}
	p.settled = now
}

// endBatch ends the batch if the batch is large enough, or if end says that no
// pending request belongs to it. Large prompts are a sample of the rate, after the
// fixed cost is subtracted. Small prompts are a sample of the fixed cost. They make
// computing look slow, so they are a sample of the rate only while there is no
// other.
func (p *prefills) endBatch(o *Options, now time.Time, end bool, take takeSample) {
	b, limit, holds := p.batch, float64(o.MinTokens), p.rate.holds(o, now)
	switch {
	case b.seconds <= 0:
		return
	case b.tokens >= limit && (!holds || b.tokens >= limit*b.requests):
		// At least half of the time is the tokens', whatever the fixed cost.
		seconds := max(b.seconds/2, b.seconds-p.each(o, now)*b.requests)
		p.batch = batch{}
		take(&p.rate, sample{b.tokens, seconds})
		return
	case !holds, !end && b.tokens < limit && b.requests < maxSamples:
		return
	case p.large > 0:
		return // a large prompt may be computed at the same time, and only both together
		// are a sample
	case b.tokens*smallFactor <= limit*b.requests:
		p.fewTokens = movingMean(p.fewTokens, b.tokens/b.requests)
		take(&p.requests, sample{b.requests, b.seconds})
	}
	p.batch = batch{}
}

func (p *prefills) remove(r *pending, o *Options) {
	at := slices.Index(p.pending, r)
	p.pending = slices.Delete(p.pending, at, at+1)
	p.tokens -= r.tokens
	p.followed -= r.account
	if r.tokens >= o.MinTokens {
		p.large--
	}
}

// done says that the first token of r has come. take is called with the complete
// samples.
func (p *prefills) done(r *pending, o *Options, now time.Time, take takeSample) {
	if r.external {
		p.abandon(r, o, now, take)
		return
	}
	p.count(o, now, take)
	p.remove(r, o)
	p.batch.tokens += float64(r.tokens)
	p.batch.requests++
	if len(p.pending) > 0 {
		return // first tokens that come now belong to the same batch
	}
	p.endBatch(o, now, true, take)
	// The rest had too few tokens. Such a sample counts only while the rate does
	// not hold.
	if p.rate.holds(o, now) {
		p.batch = batch{}
	}
}

// abandon says that r has ended without a first token. How much of r was computed
// is unknown, so the batch is dropped.
func (p *prefills) abandon(r *pending, o *Options, now time.Time, take takeSample) {
	p.count(o, now, take)
	p.remove(r, o)
	p.batch = batch{}
}
