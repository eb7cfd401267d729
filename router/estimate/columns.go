package estimate

import (
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/router/index"
)

// column is one worker's input to a decision. A decision reads the columns of all
// members, so they lie in one array. A change of a worker rebuilds its column. Times
// count from Estimator.start.
type column struct {
	worker *worker // nil for an unknown worker
	// terms are valid until termsUntil. doubt is their error.
	terms      Terms
	doubt      float64
	termsUntil time.Duration
	// ready are the seconds of the pending prompts whose blocks have arrived, and all those of all.
	ready, all float64
	// nextReady is when the blocks of the next pending request arrive.
	nextReady time.Duration
	// first is what the request that runs since runningSince takes.
	first        float64
	runningSince time.Duration
	// elsewhere are the requests of other routers, valid until elsewhereUntil.
	waitingElsewhere, runningElsewhere float64
	elsewhereUntil                     time.Duration
	// running and context are those of the requests that decode.
	running, context float64
	// pending is the number of prompts, and accountTokens is prefills.accountTokens.
	pending       float64
	accountTokens int64
	arrivals      float64
	busy          float64
	// promptSeconds is what a mean prompt takes.
	promptSeconds float64
}

const (
	never     time.Duration = math.MaxInt64
	longAgo   time.Duration = math.MinInt64
	notMember               = -1 // worker.member of a worker that is no member
	// termsMaxAge is the age at which the terms of a column are computed again.
	termsMaxAge = time.Second
)

// alignColumns rebuilds e.columns, the input of a decision, with a column for each
// member of m, in the order of m. Nothing changes if the columns have that order
// already. The caller holds e.mu.
func (e *Estimator) alignColumns(m *index.Members, now time.Time) {
	if m == e.alignedTo {
		return
	}
	for _, w := range e.workers {
		w.member = notMember
	}
	if n := len(m.List); n > cap(e.columns) {
		e.columns = make([]column, n)
	} else {
		clear(e.columns)
		e.columns = e.columns[:n]
	}
	for i := range m.List {
		w := e.workers[m.List[i].Worker]
		if w == nil { // an unknown worker has no terms
			e.columns[i] = column{termsUntil: longAgo, nextReady: never}
			continue
		}
		w.member = i
		e.columns[i] = e.columnOf(w, now)
	}
	e.alignedTo = m
}

// refreshColumn rebuilds the column of a worker, after a change of its measures or
// requests. A worker that is no member has no column.
func (e *Estimator) refreshColumn(w *worker, now time.Time) {
	if w.member != notMember {
		e.columns[w.member] = e.columnOf(w, now)
	}
}

// columnOf returns the column of a worker: what a decision needs to know of its terms
// and requests, at the time now. The times in a column say when the column
// changes by itself, so that decisions need not rebuild it.
func (e *Estimator) columnOf(w *worker, now time.Time) column {
	p := &w.prefill
	c := column{worker: w, nextReady: never, termsUntil: now.Sub(e.start) + termsMaxAge, accountTokens: p.accountTokens,
		running: float64(len(w.decode.running)), context: w.decode.context, pending: float64(len(p.pending)), arrivals: w.arrivals.per(now), busy: w.busy.per(now)}
	w.model.refreshMedians(&e.opts, now)
	slow := p.speed.of(&w.model.prefill, now)
	c.terms, c.doubt = e.termsOf(w, slow, now), slow.doubt
	for _, r := range p.pending {
		took := c.terms.promptSeconds(r)
		c.all += took
		if r.blocksReady.After(now) { // its cached blocks are still on the way to the device
			c.nextReady = min(c.nextReady, r.blocksReady.Sub(e.start))
			continue
		}
		c.ready += took
	}
	if r := p.earliest(); r != nil && !r.blocksReady.After(now) {
		c.first, c.runningSince = c.terms.promptSeconds(r), p.busySince().Sub(e.start)
	}
	c.promptSeconds = c.terms.Request + c.terms.Token*p.meanTokens.value + c.terms.Pair*p.meanPairs.value
	if w.waitingElsewhere.mean+w.runningElsewhere.mean > 0 {
		c.waitingElsewhere, c.runningElsewhere = w.waitingElsewhere.mean, w.runningElsewhere.mean
		c.elsewhereUntil = later(w.reportedAt.Sub(e.start), elsewhereMaxAge)
	}
	return c
}

// promptSeconds returns what the prompt of r takes.
func (t *Terms) promptSeconds(r *request) float64 {
	return t.Request + t.Token*float64(r.tokensToCompute) + t.Pair*r.pairs
}

// terms returns the terms of a worker.
func (e *Estimator) terms(w *worker, now time.Time) Terms {
	return e.termsOf(w, w.prefill.speed.of(&w.model.prefill, now), now)
}

// termsOf returns the terms of a worker whose prompts have a slowness.
func (e *Estimator) termsOf(w *worker, slow slowness, now time.Time) Terms {
	p, d := &w.model.prefill.term, &w.model.decode.term
	slow.factor = distinct(slow.factor, w.model.prefillTypical)
	decode := distinct(w.decode.speed.of(&w.model.decode, now).factor, w.model.decodeTypical)
	return Terms{
		Request: slow.factor * p[0], Token: slow.factor * p[1] / 1e3, Pair: slow.factor * p[2] / 1e6,
		Step: decode * d[0], Running: decode * d[1], Context: decode * d[2] / 1e3,
	}
}

// alike is the difference of a worker's slowness to the typical one, in its logarithm, that is put down
// to the fit: to what the worker happened to compute.
const alike = 0.25

// distinct returns a slowness that is nearer to the typical one by alike.
func distinct(factor, typical float64) float64 {
	d := math.Log(factor / typical)
	return typical * math.Exp(math.Copysign(max(0, math.Abs(d)-alike), d))
}

// later returns t+d, or never if the sum overflows.
func later(t, d time.Duration) time.Duration {
	if d > never-max(t, 0) {
		return never
	}
	return t + d
}
