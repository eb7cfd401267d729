package estimate

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

const (
	// maxPending bounds the prefills that are followed on one worker.
	maxPending = 1024
	// maxPrefill is how long a prefill is followed of which nothing is heard.
	maxPrefill = 5 * time.Minute
	// small is by what factor requests must be smaller than MinTokens to tell what
	// each costs: nearer to it, their tokens take as long.
	small = 4
)

// Booking is a request that was sent to a worker.
type Booking struct {
	ID     string
	Worker kv.Worker
	// Tokens is the length of its prompt, Hits what the worker has of it, in blocks of
	// BlockSize tokens.
	Tokens, BlockSize int
	Hits              index.Hits
	// Untracked says that the scheduler's account has nothing of its prefill.
	Untracked bool
}

// pending is a request whose first token has not come.
type pending struct {
	id     string
	worker *worker
	tokens int // to be computed
	// account is the same on the scheduler's account.
	account int64
	booked  time.Time
	ready   time.Time // when its blocks should have arrived
	// vague says that tokens is more than what is computed, by an unknown part.
	vague bool
}

// batch is what was computed in a time.
type batch struct{ tokens, requests, seconds float64 }

// prefills follows the pending prefills of one worker and learns its rate.
type prefills struct {
	// rate is tokens per second; requests is how many in a second of those that have
	// next to nothing to compute, fewTokens on average.
	rate, requests rate
	fewTokens      float64

	pending []*pending // in the order of booking
	// tokens and followed are the sums of tokens and account of pending, large is how
	// many have MinTokens or more.
	tokens, large int
	followed      int64
	// settled is the time until which busy time has been counted.
	settled time.Time
	// batch is what was computed since the last sample.
	batch batch
	// mean is the mean of the tokens of a request, recent ones counting for more.
	mean float64
}

// taker is given a sample of a rate.
type taker func(*rate, sample)

// add follows a request.
func (p *prefills) add(r *pending, o *Options) {
	p.pending = append(p.pending, r)
	p.tokens += r.tokens
	p.followed += r.account
	if r.tokens >= o.MinTokens {
		p.large++
	}
	p.mean = toward(p.mean, float64(r.tokens))
}

// toward is a mean, of which 0 means none yet, after one more value.
func toward(mean, v float64) float64 {
	if mean == 0 {
		return v
	}
	return mean + (v-mean)/window
}

// each is how many seconds every request costs besides its tokens: what those take that
// have next to none, less these. It is 0 when it is not known.
func (p *prefills) each(o *Options, now time.Time) float64 {
	if !p.requests.holds(o, now) || !p.rate.holds(o, now) {
		return 0
	}
	return max(0, 1/p.requests.value-p.fewTokens/p.rate.value)
}

// first is the pending request whose blocks are there first, nil when none is pending.
func (p *prefills) first() *pending {
	var first *pending
	for _, r := range p.pending {
		if first == nil || r.ready.Before(first.ready) {
			first = r
		}
	}
	return first
}

// busySince is the time from which on the worker has been computing, and no token has
// been counted yet. Some request is pending.
func (p *prefills) busySince() time.Time {
	if at := p.first().ready; !at.Before(p.settled) {
		return at
	}
	return p.settled
}

// count adds the busy time up to now to the batch. If there is any, what ended before
// it is a batch of its own when it is large enough.
func (p *prefills) count(o *Options, now time.Time, take taker) {
	if d := now.Sub(p.busySince()); d > 0 {
		p.flush(o, now, false, take)
		p.batch.seconds += d.Seconds()
	}
	p.settled = now
}

// flush ends the batch if it is large enough, or if nothing is pending that could
// still belong to it: end. Large prompts are a sample of the rate, without what the
// requests cost besides. Small ones are one of that: they make computing look slow, and
// are a sample of the rate only while there is no other.
func (p *prefills) flush(o *Options, now time.Time, end bool, take taker) {
	b, limit, holds := p.batch, float64(o.MinTokens), p.rate.holds(o, now)
	switch {
	case b.seconds <= 0:
		return
	case b.tokens >= limit && (!holds || b.tokens >= limit*b.requests):
		// Half of the time is left to the tokens, whatever the requests should cost.
		seconds := max(b.seconds/2, b.seconds-p.each(o, now)*b.requests)
		p.batch = batch{}
		take(&p.rate, sample{b.tokens, seconds})
		return
	case !holds, !end && b.tokens < limit && b.requests < window:
		return
	case p.large > 0:
		return // it may be computed at the same time: only together they tell something
	case b.tokens*small <= limit*b.requests:
		p.fewTokens = toward(p.fewTokens, b.tokens/b.requests)
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

// done says that the first token of r has come. take is given the samples that are
// complete.
func (p *prefills) done(r *pending, o *Options, now time.Time, take taker) {
	if r.vague {
		p.abandon(r, o, now, take)
		return
	}
	p.count(o, now, take)
	p.remove(r, o)
	p.batch.tokens += float64(r.tokens)
	p.batch.requests++
	if len(p.pending) > 0 {
		return // those whose first tokens come now as well belong to the same batch
	}
	p.flush(o, now, true, take)
	// What is left were too few tokens, which are better than nothing, and only that.
	if p.rate.holds(o, now) {
		p.batch = batch{}
	}
}

// abandon says that r has ended without a first token. How much of it was computed is
// not known, so that what was counted meanwhile is worthless.
func (p *prefills) abandon(r *pending, o *Options, now time.Time, take taker) {
	p.count(o, now, take)
	p.remove(r, o)
	p.batch = batch{}
}
