package estimate

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

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

// addSample adds a sample to a rate and counts it.
func (e *Estimator) addSample(r *rate, s sample, now time.Time) {
	e.stats.Samples++
	if r.add(s, now) {
		e.stats.Outliers++
	}
}
