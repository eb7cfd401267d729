package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Booked records that a request was just sent to a worker. Dropped must follow, and PrefillDone
// before it at the first token. A request for an unknown worker, or with the id of a followed one, is
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
	hits, tokens, received := b.Hits, toCompute(b.Tokens, b.BlockSize, b.Hits), 0
	if b.HandedOver { // blocks of other tiers come from the other worker too
		hits, tokens, received = index.Hits{}, 1, lacks(b.Tokens, b.BlockSize, b.Hits)
	}
	work := Work{Prompt: float64(b.Tokens), Compute: float64(tokens)}
	r := &request{
		id: b.ID, worker: w, prompt: b.Tokens, blockSize: max(1, b.BlockSize), tokensToCompute: tokens, pairs: work.Pairs(),
		bookedAt: now, heardAt: now, blocksReady: now, external: b.HandedOver || hits[kv.TierExternal] > 0,
		prefillOnly: b.ExpectedOutput == 1, received: received,
	}
	if !b.Untracked {
		r.accountTokens = int64(max(0, b.Tokens-schedule.LocalTokens(b.Hits, b.BlockSize)))
	}
	// The worker computes nothing for r before the cached blocks are on the device.
	if load, missing := e.load(w, hits, now); missing == "" {
		r.blocksReady = now.Add(time.Duration(min(load, maxSilence.Seconds()) * float64(time.Second)))
	}
	if w.pool != nil && hits[kv.TierDisk] > 0 { // later requests wait for these reads
		w.pool.enqueue(e.diskRate(w, now), float64(hits[kv.TierDisk]), now)
	}
	e.presume(w, now)
	w.prefill.add(r)
	w.arrivals.add(1, now)
	t := e.terms(w, now)
	w.busy.add(t.promptSeconds(r), now)
	if !b.HandedOver { // the worker that computed it has counted it
		w.model.prompts.add(work.Prompt)
		w.model.cached.add(work.Prompt - work.Compute)
	}
	e.refreshColumn(w, now)
	e.requests[b.ID] = r
	e.booked++
	if w.explores {
		e.explored++
		w.exploring, w.explores = r, false
	}
}

// PrefillDone records that the first token of a request has come, and learns from the time
// that it took. An unknown id and a second call change nothing but that the request is alive.
func (e *Estimator) PrefillDone(id string) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.requests[id]
	if r == nil {
		return
	}
	r.heardAt = now
	w := r.worker
	w.prefill.settle(r)
	if r.running {
		e.refreshColumn(w, now)
		return
	}
	w.prefill.pass(r, now)
	if took := now.Sub(r.bookedAt).Seconds(); r.received >= e.opts.MinTokens && took >= minSeconds && took <= maxSeconds {
		e.addSample(&w.model.handOver, sample{float64(r.received + r.receivedAfter), took}, now)
	}
	t := e.terms(w, now)
	beside := t.Beside(float64(len(w.decode.running))+w.decode.elsewhere, w.decode.context+w.decode.elsewhereContext)
	if s, ok := w.prefill.finish(r, e.opts.MinTokens, beside, w.budgetTokens(), now); ok && w.used < fullShare {
		e.learn(&w.prefill.speed, &w.model.prefill, w.model.prefillTypical, s, now)
	}
	e.decodes(r, now)
	e.presume(w, now)
	e.refreshColumn(w, now)
}

// decodes follows a request as one that has its first token.
func (e *Estimator) decodes(r *request, now time.Time) {
	r.worker.decode.begin(r, now)
	if r.worker.exploring == r {
		r.worker.exploring = nil
	}
}

// lateFirst is how long after a request has been passed its first token may come, unless its prompt takes longer.
const lateFirst = 250 * time.Millisecond

// presume has the requests of a worker decode whose first token nobody has told of, although requests that were
// sent later have theirs: an engine computes prompts in their order. Their prompts would count as work ahead
// until they end.
func (e *Estimator) presume(w *worker, now time.Time) {
	var t Terms
	for i := 0; i < len(w.prefill.pending); {
		r := w.prefill.pending[i]
		if i++; r.passedAt.IsZero() {
			continue
		}
		if t == (Terms{}) {
			t = e.terms(w, now)
		}
		if now.Sub(r.passedAt).Seconds() > max(lateFirst.Seconds(), t.promptSeconds(r)) {
			e.presumeOne(r, now)
			i--
		}
	}
}

// presumeOne has a pending request decode without a sample.
func (e *Estimator) presumeOne(r *request, now time.Time) {
	e.stats.Presumed++
	r.worker.prefill.abandon(r, now)
	e.decodes(r, now)
}

// OutputBlock records that a request has a further block of its answer, and learns from the time that
// it took. A block tells of the first token too. An unknown id changes nothing.
func (e *Estimator) OutputBlock(id string) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.requests[id]
	if r == nil {
		return
	}
	r.heardAt = now
	w := r.worker
	if !r.running {
		e.presumeOne(r, now)
	}
	e.presume(w, now)
	slow := w.prefill.speed.of(&w.model.prefill, now)
	prompts := func(x [features]float64) float64 { return slow.factor * w.model.prefill.predict(x) }
	if s, ok := w.decode.block(r, w.prefill.done, prompts, now); ok {
		e.learn(&w.decode.speed, &w.model.decode, w.model.decodeTypical, s, now)
	}
	e.refreshColumn(w, now)
}

// learn adds a sample to the speed of a worker, and to the fit of its model as of a worker of typical
// slowness.
func (e *Estimator) learn(s *speed, f *fit, typical float64, v observation, now time.Time) {
	e.stats.Samples++
	s.add(v)
	if f.weight == 0 { // the first sample must be solved at once
		f.add(v, now)
		f.solve()
		e.alignedTo = nil // the columns of all workers of the model have no terms yet
		return
	}
	before := s.of(f, now)
	if want := f.predict(v.x) * before.factor; want > 0 && (v.y > clip*want || v.y*clip < want) {
		e.stats.Outliers++
	}
	normal := v
	if f.weight >= clipFrom { // before, the fit itself may be what is wrong
		normal.y *= typical / distinct(before.factor, typical)
	}
	f.add(normal, now)
	if f.weight < maxSamples {
		f.solve()
	}
}

// Dropped records that a request has ended. Call Dropped whenever a request ends.
func (e *Estimator) Dropped(id string) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.requests[id]; r != nil {
		e.end(r, now)
	}
}

// expire ends the requests of a worker that were silent for longer than maxSilence.
func (e *Estimator) expire(w *worker, now time.Time) {
	for len(w.prefill.pending) > 0 && now.Sub(w.prefill.pending[0].bookedAt) > maxSilence {
		e.end(w.prefill.pending[0], now)
		e.stats.Expired++
		e.stats.Abandoned--
	}
	for i := len(w.decode.running) - 1; i >= 0; i-- {
		// A request whose answer is not followed is only heard of at its end.
		if r := w.decode.running[i]; now.Sub(r.heardAt) > maxDecode {
			e.end(r, now)
			e.stats.Expired++
		}
	}
}

// maxDecode is how long an answer is followed without a call for it.
const maxDecode = 30 * time.Minute

// end ends the following of a request.
func (e *Estimator) end(r *request, now time.Time) {
	delete(e.requests, r.id)
	w := r.worker
	w.prefill.settle(r)
	if w.exploring == r {
		w.exploring = nil
	}
	if r.running {
		w.decode.end(r, now)
		if !r.prefillOnly && (r.blocks > 0 || w.model.output.weight > 0) { // an answer without a block counts once others have blocks
			w.model.output.add((float64(r.blocks) + 0.5) * float64(r.blockSize))
		}
	} else {
		w.prefill.abandon(r, now)
		e.stats.Abandoned++
	}
	e.refreshColumn(w, now)
}

// lacks returns how many tokens of a prompt a worker's device lacks. Blocks of other tiers are handed over too.
func lacks(tokens, blockSize int, hits index.Hits) int {
	return max(0, tokens-int(hits[kv.TierDevice])*blockSize)
}

// toCompute returns how many tokens of a prompt a worker has to compute or to fetch
// from the external tier. An engine always computes the last token.
func toCompute(tokens, blockSize int, hits index.Hits) int {
	return max(1, tokens-schedule.LocalTokens(hits, blockSize))
}
