package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

var _ schedule.Estimator = (*Estimator)(nil)

// FirstTokens implements schedule.Estimator. It allocates only when the members
// have changed or a measure is missing.
func (e *Estimator) FirstTokens(in *schedule.Selection, ms []float64) (why string, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.opts.Now()
	at := now.Sub(e.start)
	e.align(in.Members, now)
	hits, booked := in.Request.Hits, in.Loads.PrefillTokens
	cold := computes(in, index.Hits{})
	for k := range ms {
		m := in.At(k)
		c := &e.columns[m]
		if at >= c.next {
			*c = e.columnOf(c.worker, now)
		}
		perSecond, each := c.perSecond, c.each
		if at > c.until {
			if perSecond, each, why = e.medianRates(c.worker, in.Members.List[m].Worker, now); why != "" {
				return e.missing(why)
			}
		}
		for len(hits) > 0 && int(hits[0].Member) < m {
			hits = hits[1:]
		}
		ahead, requests, compute, load := c.tokens, c.requests, cold, 0.0
		if len(hits) > 0 && int(hits[0].Member) == m {
			compute = computes(in, hits[0].Hits)
			if load, why = e.load(c.worker, hits[0].Hits, now); why != "" {
				return e.missing(why)
			}
			if p := &c.worker.prefill; load > 0 { // requests that wait for their blocks come first
				ahead, requests = float64(p.tokens), float64(len(p.pending))
			}
		}
		if c.first > 0 {
			ahead -= max(0, min((at-c.computing).Seconds()*perSecond, c.first))
		}
		if c.others > 0 && at <= c.othersUntil {
			ahead, requests = ahead+c.others*c.worker.prefill.mean, requests+c.others
		}
		ahead += float64(max(0, booked[m]-c.followed))
		ms[k] = 1e3 * (load + (ahead+compute)/perSecond + (requests+1)*each)
	}
	return "", true
}

// computes returns how many tokens a worker has to compute. A block of the shared
// cache that the worker lacks counts as cached by the multiplier, because nothing
// measures how long the fetch takes.
func computes(in *schedule.Selection, hits index.Hits) float64 {
	r := in.Request
	tokens := float64(toCompute(r.Tokens, r.BlockSize, hits))
	if r.SharedHits == nil || in.Config.SharedMultiplier == 0 {
		return tokens
	}
	local := schedule.LocalTokens(hits, r.BlockSize) / r.BlockSize
	return max(1, tokens-in.Config.SharedMultiplier*float64(r.SharedHits.Beyond(local)*r.BlockSize))
}

func (e *Estimator) missing(why string) (string, bool) {
	e.stats.Missing++
	return why, false
}

// medianRates returns the medians that replace the prefill rate and the fixed cost
// of a worker, or what is missing. w is nil for an unknown worker.
func (e *Estimator) medianRates(w *worker, id kv.Worker, now time.Time) (perSecond, each float64, missing string) {
	if w == nil {
		return 0, 0, "worker " + id.String() + " is not known"
	}
	w.model.medians(&e.opts, now)
	if w.model.prefill.value == 0 {
		return 0, 0, "no prefill rate of " + w.String() + " yet"
	}
	return w.model.prefill.value, w.model.each.value, ""
}

// load returns how many seconds it takes to load blocks onto a worker's device, or
// what is missing. External blocks are not loaded: see schedule.LocalTokens.
func (e *Estimator) load(w *worker, hits index.Hits, now time.Time) (seconds float64, missing string) {
	host, disk := float64(hits[kv.TierHost]), float64(hits[kv.TierDisk])
	if host+disk == 0 {
		return 0, ""
	}
	block := e.blockBytes(w, now)
	if block == 0 {
		return 0, "no size of a block of " + w.String() + " yet"
	}
	copies := e.rateOf(&w.copies, w.model, func(m *model) standIn { return m.copies }, now)
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
	return seconds + (disk+w.pool.waiting(reads, now))*block/reads, ""
}

// diskRate returns the disk rate of a worker's pool, 0 without a pool.
func (e *Estimator) diskRate(w *worker, now time.Time) float64 {
	if w.pool == nil {
		return 0
	}
	return e.rateOf(&w.pool.disk, w.model, func(m *model) standIn { return m.disk }, now)
}

// rateOf returns a rate that holds, or the median that replaces it, or 0.
func (e *Estimator) rateOf(r *rate, m *model, of func(*model) standIn, now time.Time) float64 {
	if r.holds(&e.opts, now) {
		return r.value
	}
	m.medians(&e.opts, now)
	return of(m).value
}

func (e *Estimator) blockBytes(w *worker, now time.Time) float64 {
	if w.pool != nil && w.pool.blockBytes > 0 {
		return w.pool.blockBytes
	}
	w.model.medians(&e.opts, now)
	return w.model.blockBytes.value
}
