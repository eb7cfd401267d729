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
)

// Booking is a request that was sent to a worker.
type Booking struct {
	ID     string
	Worker kv.Worker
	// Tokens is the length of its prompt, Hits what the worker has of it, in blocks of
	// BlockSize tokens.
	Tokens, BlockSize int
	Hits              index.Hits
}

// pending is a request whose first token has not come.
type pending struct {
	id     string
	worker *worker
	tokens int // to be computed
	booked time.Time
	ready  time.Time // when its blocks should have arrived
}

// prefills follows the pending prefills of one worker and learns its rate.
type prefills struct {
	rate    rate
	pending []*pending // in the order of booking
	tokens  int        // of pending
	// settled is the time until which busy time has been counted.
	settled time.Time
	// batch is what was computed since the last sample.
	batch sample
	// mean is the mean of the tokens of a request, recent ones counting for more.
	mean float64
}

// add follows a request.
func (p *prefills) add(r *pending) {
	p.pending = append(p.pending, r)
	p.tokens += r.tokens
	if p.mean == 0 {
		p.mean = float64(r.tokens)
	}
	p.mean += (float64(r.tokens) - p.mean) / window
}

// busySince is the time from which on the worker has been computing, and no token has
// been counted yet. Some request is pending.
func (p *prefills) busySince() time.Time {
	first := p.pending[0].ready
	for _, r := range p.pending[1:] {
		if r.ready.Before(first) {
			first = r.ready
		}
	}
	if first.Before(p.settled) {
		return p.settled
	}
	return first
}

// count adds the busy time up to now to the batch. If there is any, what ended before
// it is a batch of its own when it is large enough: take is given it.
func (p *prefills) count(o *Options, now time.Time, take func(sample)) {
	if d := now.Sub(p.busySince()); d > 0 {
		p.flush(o, take)
		p.batch.seconds += d.Seconds()
	}
	p.settled = now
}

// flush ends the batch if it is large enough.
func (p *prefills) flush(o *Options, take func(sample)) {
	if p.batch.amount >= float64(o.MinTokens) && p.batch.seconds > 0 {
		s := p.batch
		p.batch = sample{}
		take(s)
	}
}

func (p *prefills) remove(r *pending) {
	at := slices.Index(p.pending, r)
	p.pending = slices.Delete(p.pending, at, at+1)
	p.tokens -= r.tokens
}

// done says that the first token of r has come. take is given the samples that are
// complete.
func (p *prefills) done(r *pending, o *Options, now time.Time, take func(sample)) {
	p.count(o, now, take)
	p.remove(r)
	p.batch.amount += float64(r.tokens)
	if len(p.pending) > 0 {
		return // those whose first tokens come now as well belong to the same batch
	}
	p.flush(o, take)
	// Small prompts tell of their own cost, not of computing. They are better than
	// nothing, and only that.
	if p.rate.holds(o, now) {
		p.batch = sample{}
	}
}

// abandon says that r has ended without a first token. How much of it was computed is
// not known, so that what was counted meanwhile is worthless.
func (p *prefills) abandon(r *pending, o *Options, now time.Time, take func(sample)) {
	p.count(o, now, take)
	p.remove(r)
	p.batch = sample{}
}

// progress is how many of the pending tokens should have been computed by now.
func (p *prefills) progress(perSecond float64, now time.Time) float64 {
	if len(p.pending) == 0 {
		return 0
	}
	d := now.Sub(p.busySince()).Seconds()
	return max(0, min(d*perSecond, float64(p.pending[0].tokens)))
}
