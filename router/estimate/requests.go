package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Booked records that a request was just sent to a worker. PrefillDone or Dropped
// must follow. A request for an unknown worker, or with the id of a pending one, is
// counted and not followed.
func (e *Estimator) Booked(b *Booking) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.workers[b.Worker]
	if w != nil {
		e.expire(w, now)
	}
	// A full table may have expired requests of other workers. Look once a second only.
	if len(e.requests) >= e.opts.MaxRequests && now.Sub(e.expiredAt) >= time.Second {
		e.expiredAt = now
		for _, w := range e.workers {
			e.expire(w, now)
		}
	}
	if w == nil || e.requests[b.ID] != nil || len(e.requests) >= e.opts.MaxRequests || len(w.prefill.pending) >= maxPending {
		e.stats.Unfollowed++
		return
	}
	tokens := toCompute(b.Tokens, b.BlockSize, b.Hits)
	r := &pending{
		id: b.ID, worker: w, tokensToCompute: tokens,
		bookedAt: now, blocksReady: now, external: b.Hits[kv.TierExternal] > 0,
	}
	if !b.Untracked {
		r.accountTokens = int64(max(0, b.Tokens-schedule.LocalTokens(b.Hits, b.BlockSize)))
	}
	// The worker computes nothing for r before the cached blocks are on the device.
	if load, missing := e.load(w, b.Hits, now); missing == "" {
		r.blocksReady = now.Add(time.Duration(min(load, maxSilence.Seconds()) * float64(time.Second)))
	}
	if w.pool != nil && b.Hits[kv.TierDisk] > 0 { // later requests wait for these reads
		w.pool.enqueue(e.diskRate(w, now), float64(b.Hits[kv.TierDisk]), now)
	}
	w.prefill.add(r, &e.opts)
	e.refreshColumn(w, now)
	e.requests[b.ID] = r
}

// PrefillDone records that the first token of a request has come, and learns from the time
// that it took. An unknown id changes nothing.
func (e *Estimator) PrefillDone(id string) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.requests[id]
	if r == nil {
		return
	}
	delete(e.requests, id)
	r.worker.prefill.done(r, &e.opts, now, func(of *rate, s sample) { e.addSample(of, s, now) })
	e.refreshColumn(r.worker, now)
}

// Dropped records that a request has ended. Call Dropped whenever a request ends:
// after PrefillDone it does nothing.
func (e *Estimator) Dropped(id string) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.requests[id]
	if r == nil {
		return
	}
	delete(e.requests, id)
	e.abandon(r, now)
	e.stats.Abandoned++
}

// expire ends the requests of a worker that were booked more than maxSilence ago and got no
// first token. Pending requests are in the order of booking.
func (e *Estimator) expire(w *worker, now time.Time) {
	for len(w.prefill.pending) > 0 && now.Sub(w.prefill.pending[0].bookedAt) > maxSilence {
		r := w.prefill.pending[0]
		delete(e.requests, r.id)
		e.abandon(r, now)
		e.stats.Expired++
	}
}

// abandon ends a request without a first token.
func (e *Estimator) abandon(r *pending, now time.Time) {
	r.worker.prefill.abandon(r, &e.opts, now, func(of *rate, s sample) { e.addSample(of, s, now) })
	e.refreshColumn(r.worker, now)
}

// addSample adds a sample to a rate and counts it.
func (e *Estimator) addSample(r *rate, s sample, now time.Time) {
	e.stats.Samples++
	if r.add(s, now) {
		e.stats.Outliers++
	}
}

// toCompute returns how many tokens of a prompt a worker has to compute or to fetch
// from the external tier. An engine always computes the last token.
func toCompute(tokens, blockSize int, hits index.Hits) int {
	return max(1, tokens-schedule.LocalTokens(hits, blockSize))
}
