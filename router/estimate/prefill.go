package estimate

import (
	"math"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

const (
	// maxPending bounds the followed prefills of one worker.
	maxPending = 1024
	// maxSilence is how long a request is followed without a call for it.
	maxSilence = 5 * time.Minute
	// minSeconds and maxSeconds bound a sample of prompts that are computed.
	minSeconds, maxSeconds = 1e-4, 600
	// fullShare is the share of the device in use above which requests wait for room. That time is
	// no sample of computing.
	fullShare = 0.95
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
	// ExpectedOutput is the expected number of generated tokens, 0 when unknown. 1 says that the end of the
	// request tells nothing of the lengths of answers.
	ExpectedOutput int
	// HandedOver says that another worker has computed the prompt.
	HandedOver bool
}

// request is a request that is followed until its end: first its prompt, then its answer.
type request struct {
	id     string
	worker *worker
	// prompt is the length of the prompt, blockSize the number of tokens of a block.
	prompt, blockSize int
	tokensToCompute   int
	pairs             float64
	// accountTokens are the request's tokens on the scheduler's account.
	accountTokens int64
	bookedAt      time.Time
	// blocksReady is when its cached blocks should have arrived on the device.
	blocksReady time.Time
	// external says that the worker has external hits or a prompt that is handed over. Then an
	// unknown number of tokens is fetched and not computed.
	external bool
	// received are the tokens of a prompt that is handed over and that the worker lacks. receivedAfter are
	// those that its earlier requests still received at the booking.
	received, receivedAfter int
	// prefillOnly says that the answer has one token.
	prefillOnly bool
	// passedAt is when a request that was sent later had its first token; zero for never.
	passedAt time.Time
	// running is true after the first token. blocks are the blocks of the answer so far.
	running bool
	blocks  int
	heardAt time.Time
}

// work returns the request's prompt in the units of model.prefill.
func (r *request) work() [features]float64 {
	return [features]float64{1, float64(r.tokensToCompute) / 1e3, r.pairs / 1e6}
}

// prefills follows the pending prefills of one worker.
type prefills struct {
	speed speed

	pending []*request // in the order of booking
	// tokens is the sum over pending. accountTokens are those of all requests that are not settled.
	tokens        int
	accountTokens int64
	// receiving is the sum of received over pending.
	receiving int
	// countedUntil is when busy time was last counted.
	countedUntil time.Time
	// batch is the work that was computed since the last sample, and its seconds of busy time.
	batch   [features]float64
	seconds float64
	// spoiled says that the batch has work of an unknown amount, or waited for room.
	spoiled bool
	// done sums the work of all prompts that were computed.
	done [features]float64
	// mean is the mean work of a prompt.
	meanTokens, meanPairs moving
}

// add begins to follow the prompt of r, which was just booked on the worker.
func (p *prefills) add(r *request) {
	p.pending = append(p.pending, r)
	p.tokens += r.tokensToCompute
	r.receivedAfter = p.receiving
	p.receiving += r.received
	p.accountTokens += r.accountTokens
	p.meanTokens.add(float64(r.tokensToCompute))
	p.meanPairs.add(r.pairs)
}

// earliest returns the pending request whose blocks arrive first, or nil.
func (p *prefills) earliest() *request {
	var first *request
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
// sample. It runs before a request leaves p.pending.
func (p *prefills) countBusy(now time.Time) {
	if d := now.Sub(p.busySince()); d > 0 { // the first request may not be ready yet
		p.seconds += d.Seconds()
	}
	p.countedUntil = now
}

// remove ends the following of the prompt of r, which is pending. Its tokens stay accounted until settle.
func (p *prefills) remove(r *request) {
	at := slices.Index(p.pending, r)
	p.pending = slices.Delete(p.pending, at, at+1)
	p.tokens -= r.tokensToCompute
	p.receiving -= r.received
}

// settle forgets the tokens of r that the scheduler's account has. A second call does nothing.
func (p *prefills) settle(r *request) {
	p.accountTokens -= r.accountTokens
	r.accountTokens = 0
}

// pass marks the requests that r, which has its first token, has passed.
func (p *prefills) pass(r *request, now time.Time) {
	for _, other := range p.pending {
		if !other.external && other.passedAt.IsZero() && !other.bookedAt.After(r.bookedAt) && !other.blocksReady.After(r.blocksReady) {
			other.passedAt = now
		}
	}
}

// finish records that the first token of r has come, so that its prompt is computed. It returns the
// sample of the batch that ends with it; ok is false when the batch goes on or is none. beside is
// the seconds of a step without prompts, and budget the number of tokens of a step.
func (p *prefills) finish(r *request, minTokens int, beside, budget float64, now time.Time) (s observation, ok bool) {
	p.countBusy(now)
	p.remove(r)
	for i, v := range r.work() {
		p.batch[i] += v
		p.done[i] += v
	}
	p.spoiled = p.spoiled || r.external
	// Prompts that are pending were hardly begun, because an engine computes one after the other.
	if len(p.pending) > 0 && p.batch[1]*1e3 < float64(minTokens) {
		return observation{}, false
	}
	s = observation{p.batch, p.seconds, now}
	spoiled := p.spoiled
	p.drop()
	steps := math.Ceil(s.x[1] * 1e3 / budget)
	s.y = max(s.y/4, s.y-(steps+0.5)*beside)
	return s, !spoiled && s.y >= minSeconds && s.y <= maxSeconds
}

// drop forgets the batch: it becomes no sample.
func (p *prefills) drop() { p.batch, p.seconds, p.spoiled = [features]float64{}, 0, false }

// abandon ends the following of the prompt of r without a first token. How much of r was computed is
// unknown, so the work since the last sample becomes no sample.
func (p *prefills) abandon(r *request, now time.Time) {
	p.countBusy(now)
	p.remove(r)
	p.drop()
}
