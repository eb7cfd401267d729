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
	// maxSilence is how long a prefill is followed without a call for it.
	maxSilence = 5 * time.Minute
	// A request of MinTokens/smallFactor tokens or less is a sample of the fixed cost.
	// The tokens of a larger request take about as long as the fixed cost.
	smallFactor = 4
)

// Booking is a request that was sent to a worker.
type Booking struct {
	ID     string
	Worker kv.Worker
	// Tokens is the length of the prompt. Hits are the worker's hits, in blocks of
	// BlockSize tokens.
	Tokens, BlockSize int
	Hits              index.Hits
	// Untracked says that the prefill is not on the scheduler's account.
	Untracked bool
}

// pending is a request without a first token.
type pending struct {
	id              string
	worker          *worker
	tokensToCompute int
	// accountTokens are the request's tokens on the scheduler's account.
	accountTokens int64
	bookedAt      time.Time
	// blocksReady is when its cached blocks should have arrived on the device.
	blocksReady time.Time
	// external says that the worker has external hits. Then an unknown number of
	// tokens is fetched and not computed.
	external bool
}

// batch is work that was computed in some seconds of busy time.
type batch struct{ tokens, requests, seconds float64 }

// prefills follows the pending prefills of one worker and learns its rate.
type prefills struct {
	// tokenRate is tokens per second. requestRate is requests per second, learned from
	// small prompts. fewTokens is the mean number of tokens of a small prompt.
	tokenRate, requestRate rate
	fewTokens              float64

	pending []*pending // in the order of booking
	// tokens and accountTokens are the sums over pending. largePrompts is how many
	// pending requests have MinTokens or more.
	tokens, largePrompts int
	accountTokens        int64
	// countedUntil is when busy time was last counted.
	countedUntil time.Time
	// batch is the work since the last sample.
	batch batch
	// meanTokens is the moving mean of the tokens that a request has to compute.
	meanTokens float64
}

// takeSample adds a sample to a rate and counts the sample.
type takeSample func(*rate, sample)

// add begins to follow request r, which was just booked on the worker.
func (p *prefills) add(r *pending, o *Options) {
	p.pending = append(p.pending, r)
	p.tokens += r.tokensToCompute
	p.accountTokens += r.accountTokens
	if r.tokensToCompute >= o.MinTokens {
		p.largePrompts++
	}
	p.meanTokens = movingMean(p.meanTokens, float64(r.tokensToCompute))
}

// movingMean returns the mean after one more value v, which weighs 1/maxSamples. A mean of 0
// has no values yet.
func movingMean(mean, v float64) float64 {
	if mean == 0 {
		return v
	}
	return mean + (v-mean)/maxSamples
}

// fixedCost returns the fixed cost of a request in seconds, 0 when unknown. It is the
// time of a small prompt less the time of the prompt's tokens.
func (p *prefills) fixedCost(o *Options, now time.Time) float64 {
	if !p.requestRate.valid(o, now) || !p.tokenRate.valid(o, now) {
		return 0
	}
	return max(0, 1/p.requestRate.value-p.fewTokens/p.tokenRate.value)
}

// earliest returns the pending request whose blocks arrive first, or nil.
func (p *prefills) earliest() *pending {
	var first *pending
	for _, r := range p.pending {
		if first == nil || r.blocksReady.Before(first.blocksReady) {
			first = r
		}
	}
	return first
}

// busySince returns the start of the busy time that the batch does not count yet. A worker
// is busy while it has a pending request whose cached blocks have arrived. At least one
// request must be pending.
func (p *prefills) busySince() time.Time {
	if at := p.earliest().blocksReady; !at.Before(p.countedUntil) {
		return at
	}
	return p.countedUntil
}

// countBusy adds the worker's busy time until now to the batch, the work since the last
// sample. A batch that is already large enough becomes a sample first, which goes to take.
// It runs before a request leaves p.pending.
func (p *prefills) countBusy(o *Options, now time.Time, take takeSample) {
	if d := now.Sub(p.busySince()); d > 0 { // the first request may not be ready yet
		p.endBatch(o, now, false, take)
		p.batch.seconds += d.Seconds()
	}
	p.countedUntil = now
}

// endBatch makes a sample of the batch, the work since the last sample, if the batch is large
// enough or if last says that no pending request belongs to it. Otherwise the batch goes on. A
// batch that shows neither rate is dropped. The sample goes to take. Large prompts become a
// sample of the token rate, less the fixed cost. Small prompts become a sample of the fixed cost.
// They understate the token rate, so they count for it only until it is valid.
func (p *prefills) endBatch(o *Options, now time.Time, last bool, take takeSample) {
	b, limit, rateValid := p.batch, float64(o.MinTokens), p.tokenRate.valid(o, now)
	switch {
	case b.seconds <= 0:
		return
	case b.tokens >= limit && (!rateValid || b.tokens >= limit*b.requests):
		// The fixed cost may explain at most half of the time.
		seconds := max(b.seconds/2, b.seconds-p.fixedCost(o, now)*b.requests)
		p.batch = batch{}
		take(&p.tokenRate, sample{b.tokens, seconds})
		return
	case !rateValid, !last && b.tokens < limit && b.requests < maxSamples:
		return // too small for a sample: the batch goes on
	case p.largePrompts > 0:
		return // a large prompt may share the time: both become one sample
	case b.tokens*smallFactor <= limit*b.requests:
		p.fewTokens = movingMean(p.fewTokens, b.tokens/b.requests)
		take(&p.requestRate, sample{b.requests, b.seconds})
	}
	p.batch = batch{}
}

// remove ends the following of request r, which is pending.
func (p *prefills) remove(r *pending, o *Options) {
	at := slices.Index(p.pending, r)
	p.pending = slices.Delete(p.pending, at, at+1)
	p.tokens -= r.tokensToCompute
	p.accountTokens -= r.accountTokens
	if r.tokensToCompute >= o.MinTokens {
		p.largePrompts--
	}
}

// done records that the first token of request r has come, so that its tokens are computed.
// The batch, the work since the last sample, becomes a sample when it is complete. Samples
// go to take.
func (p *prefills) done(r *pending, o *Options, now time.Time, take takeSample) {
	if r.external { // how many tokens were computed is unknown
		p.abandon(r, o, now, take)
		return
	}
	p.countBusy(o, now, take)
	p.remove(r, o)
	p.batch.tokens += float64(r.tokensToCompute)
	p.batch.requests++
	if len(p.pending) > 0 {
		return // the pending requests ran at the same time and join this batch
	}
	p.endBatch(o, now, true, take)
	// A batch that endBatch has left is too small. It waits for more only until the
	// rate is valid.
	if p.tokenRate.valid(o, now) {
		p.batch = batch{}
	}
}

// abandon records that request r ended without a first token. How much of r was computed is
// unknown, so the work since the last sample becomes no sample.
func (p *prefills) abandon(r *pending, o *Options, now time.Time, take takeSample) {
	p.countBusy(o, now, take)
	p.remove(r, o)
	p.batch = batch{}
}
