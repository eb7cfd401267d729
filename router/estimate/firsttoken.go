package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

var _ schedule.Estimator = (*Estimator)(nil)

// FirstTokens implements schedule.Estimator. It sets ms[k] to the expected milliseconds
// to the first token on candidate k: the time to load its cached blocks, the time to
// compute the tokens ahead of the request and its own, and a fixed cost for each request.
// ok is false without a measure that a candidate needs; why names the measure. FirstTokens
// allocates only when the members have changed or a measure is missing.
func (e *Estimator) FirstTokens(in *schedule.Selection, ms []float64) (why string, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.opts.Now()
	at := now.Sub(e.start)
	e.alignColumns(in.Members, now)
	hits, accounts := in.Request.Hits, in.Loads.PrefillTokens
	coldTokens := promptTokens(in, index.Hits{})
	for k := range ms {
		m := in.At(k)
		c := &e.columns[m]
		if at >= c.nextReady { // a pending request became ready to run
			*c = e.columnOf(c.worker, now)
		}
		perSecond, fixedCost := c.tokensPerSecond, c.fixedCost
		if at > c.ratesUntil { // without rates of its own the worker gets its model's
			if perSecond, fixedCost, why = e.medianRates(c.worker, in.Members.List[m].Worker, now); why != "" {
				return e.missing(why)
			}
		}
		// Candidates and hits are both in the order of members.
		for len(hits) > 0 && int(hits[0].Member) < m {
			hits = hits[1:]
		}
		aheadTokens, aheadRequests, tokens, load := c.readyTokens, c.readyRequests, coldTokens, 0.0
		if len(hits) > 0 && int(hits[0].Member) == m {
			tokens = promptTokens(in, hits[0].Hits)
			if load, why = e.load(c.worker, hits[0].Hits, now); why != "" {
				return e.missing(why)
			}
			if p := &c.worker.prefill; load > 0 { // earlier requests get their blocks first
				aheadTokens, aheadRequests = float64(p.tokens), float64(len(p.pending))
			}
		}
		if c.runningTokens > 0 { // a part of the running request is done
			aheadTokens -= max(0, min((at-c.runningSince).Seconds()*perSecond, c.runningTokens))
		}
		// Requests of other routers are of unknown length.
		if c.queuedElsewhere > 0 && at <= c.queuedElsewhereUntil {
			aheadTokens += c.queuedElsewhere * c.worker.prefill.meanTokens
			aheadRequests += c.queuedElsewhere
		}
		// The account also has requests that are not followed here.
		aheadTokens += float64(max(0, accounts[m]-c.accountTokens))
		ms[k] = 1e3 * (load + (aheadTokens+tokens)/perSecond + (aheadRequests+1)*fixedCost)
	}
	return "", true
}

// promptTokens returns how many tokens of the prompt a worker with these hits has to
// compute. A block of the shared cache that the worker lacks counts as cached by the
// multiplier, because nothing measures how long the fetch takes.
func promptTokens(in *schedule.Selection, hits index.Hits) float64 {
	r := in.Request
	tokens := float64(toCompute(r.Tokens, r.BlockSize, hits))
	if r.SharedHits == nil || in.Config.SharedMultiplier == 0 {
		return tokens
	}
	local := schedule.LocalTokens(hits, r.BlockSize) / r.BlockSize
	return max(1, tokens-in.Config.SharedMultiplier*float64(r.SharedHits.Beyond(local)*r.BlockSize))
}

// missing counts a decision without an estimate, and returns the results of FirstTokens.
func (e *Estimator) missing(why string) (string, bool) {
	e.stats.Missing++
	return why, false
}

// medianRates returns rates for a worker without rates of its own: the medians over the
// workers of its model. perSecond is in tokens, fixedCost the seconds of a request. missing
// names the missing measure, empty for none. w is nil for an unknown worker.
func (e *Estimator) medianRates(w *worker, id kv.Worker, now time.Time) (perSecond, fixedCost float64, missing string) {
	if w == nil {
		return 0, 0, "worker " + id.String() + " is not known"
	}
	w.model.refreshMedians(&e.opts, now)
	if w.model.prefill.value == 0 {
		return 0, 0, "no prefill rate of " + w.String() + " yet"
	}
	return w.model.prefill.value, w.model.fixedCost.value, ""
}

// load returns how many seconds it takes to bring the hit blocks in host memory and on
// disk onto a worker's device. missing names the missing measure, empty for none.
// External blocks are not loaded: see schedule.LocalTokens.
func (e *Estimator) load(w *worker, hits index.Hits, now time.Time) (seconds float64, missing string) {
	host, disk := float64(hits[kv.TierHost]), float64(hits[kv.TierDisk])
	if host+disk == 0 {
		return 0, ""
	}
	block := e.blockBytes(w, now)
	if block == 0 {
		return 0, "no size of a block of " + w.String() + " yet"
	}
	copies := e.rateOf(&w.copyRate, w.model, func(m *model) modelMedian { return m.copies }, now)
	if copies == 0 {
		return 0, "no copy rate of " + w.String() + " yet"
	}
	seconds = (host + disk) * block / copies
	if disk == 0 {
		return seconds, ""
	}
	reads := e.diskRate(w, now)
	if reads == 0 {
		return 0, "no disk rate of " + w.String() + " yet"
	}
	// The disk first reads the blocks that wait in its queue.
	return seconds + (disk+w.pool.predictedQueue(reads, now))*block/reads, ""
}

// diskRate returns how many bytes per second the disk of a worker's pool reads, 0 when
// unknown or without a pool.
func (e *Estimator) diskRate(w *worker, now time.Time) float64 {
	if w.pool == nil {
		return 0
	}
	return e.rateOf(&w.pool.diskRate, w.model, func(m *model) modelMedian { return m.disk }, now)
}

// rateOf returns the amount per second of rate r. A rate with few or old samples is replaced
// by the median over model m, which of selects. The result is 0 without both.
func (e *Estimator) rateOf(r *rate, m *model, of func(*model) modelMedian, now time.Time) float64 {
	if r.valid(&e.opts, now) {
		return r.value
	}
	m.refreshMedians(&e.opts, now)
	return of(m).value
}

// blockBytes returns the size of a block in bytes, as the worker's pool reported. Without
// a report it returns the median over the worker's model, or 0 when unknown.
func (e *Estimator) blockBytes(w *worker, now time.Time) float64 {
	if w.pool != nil && w.pool.blockBytes > 0 {
		return w.pool.blockBytes
	}
	w.model.refreshMedians(&e.opts, now)
	return w.model.blockBytes.value
}
