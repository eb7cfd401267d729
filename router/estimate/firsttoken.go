package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

var _ schedule.Estimator = (*Estimator)(nil)

// FirstToken implements schedule.Estimator. It does not allocate unless something is
// missing.
func (e *Estimator) FirstToken(in *schedule.EstimateInput) (ms float64, ok bool, why string) {
	now := e.opts.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.find(in.Member, in.Worker)
	if w == nil {
		e.stats.Missing++
		return 0, false, "worker " + in.Worker.String() + " is not known"
	}
	perSecond := e.rateOf(&w.prefill.rate, w.model, func(m *model) standIn { return m.prefill }, now)
	if perSecond == 0 {
		e.stats.Missing++
		return 0, false, "no prefill rate of " + w.String() + " yet"
	}
	load, missing := e.load(w, in.Hits, now)
	if missing != "" {
		e.stats.Missing++
		return 0, false, missing
	}
	ahead := max(0, float64(in.PrefillTokens)-w.prefill.progress(perSecond, now)) + w.foreign(now)
	compute := float64(toCompute(in.Tokens, in.BlockSize, in.Hits.Total()))
	return 1e3 * (load + (ahead+compute)/perSecond), true, ""
}

// foreign is how many tokens of requests that others have sent are ahead of a new one,
// if they are like ours.
func (w *worker) foreign(now time.Time) float64 {
	if w.waiting == 0 || now.Sub(w.reported) > waitingHolds {
		return 0
	}
	return float64(w.waiting) * w.prefill.mean
}

// load is how many seconds it takes to bring blocks to a worker's device, or what is
// not known of that.
func (e *Estimator) load(w *worker, hits index.Hits, now time.Time) (seconds float64, missing string) {
	host, disk := float64(hits[kv.TierHost]), float64(hits[kv.TierDisk])
	if hits[kv.TierExternal] > 0 {
		return 0, "no rate of external blocks of " + w.String()
	}
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

// diskRate is that of a worker's pool; 0 without a pool.
func (e *Estimator) diskRate(w *worker, now time.Time) float64 {
	if w.pool == nil {
		return 0
	}
	return e.rateOf(&w.pool.disk, w.model, func(m *model) standIn { return m.disk }, now)
}

// rateOf is a rate that holds, or what stands in for it; 0 when there is neither.
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
