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
	// tokensPerSecond is the worker's own prefill rate. fixedCost is the fixed cost of
	// a request in seconds. Both are valid until ratesUntil.
	tokensPerSecond, fixedCost float64
	ratesUntil                 time.Duration
	// readyRequests are the pending requests whose blocks have arrived. readyTokens
	// are the tokens that they have to compute.
	readyTokens, readyRequests float64
	// nextReady is when the blocks of the next pending request arrive.
	nextReady time.Duration
	// runningTokens are the tokens of the request that runs since runningSince.
	runningTokens float64
	runningSince  time.Duration
	// queuedElsewhere is worker.queuedElsewhere, valid until queuedElsewhereUntil.
	queuedElsewhere      float64
	queuedElsewhereUntil time.Duration
	// accountTokens is prefills.accountTokens.
	accountTokens int64
}

const (
	never     time.Duration = math.MaxInt64
	longAgo   time.Duration = math.MinInt64
	notMember               = -1 // worker.member of a worker that is no member
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
		if w == nil { // an unknown worker has no rates
			e.columns[i] = column{ratesUntil: longAgo, nextReady: never}
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

// columnOf returns the column of a worker: what a decision needs to know of its rates
// and pending requests, at the time now. The times in a column say when the column
// changes by itself, so that decisions need not rebuild it.
func (e *Estimator) columnOf(w *worker, now time.Time) column {
	p := &w.prefill
	c := column{worker: w, ratesUntil: longAgo, nextReady: never, accountTokens: p.accountTokens}
	if p.tokenRate.count >= e.opts.MinSamples {
		c.tokensPerSecond, c.fixedCost = p.tokenRate.value, p.fixedCost(&e.opts, now)
		c.ratesUntil = later(p.tokenRate.last.Sub(e.start), e.opts.MaxAge)
	}
	for _, r := range p.pending {
		if r.blocksReady.After(now) { // its cached blocks are still on the way to the device
			c.nextReady = min(c.nextReady, r.blocksReady.Sub(e.start))
			continue
		}
		c.readyTokens += float64(r.tokensToCompute)
		c.readyRequests++
	}
	if r := p.earliest(); r != nil && !r.blocksReady.After(now) {
		c.runningTokens, c.runningSince = float64(r.tokensToCompute), p.busySince().Sub(e.start)
	}
	if w.queuedElsewhere > 0 {
		c.queuedElsewhere, c.queuedElsewhereUntil = float64(w.queuedElsewhere), later(w.reportedAt.Sub(e.start), elsewhereMaxAge)
	}
	return c
}

// later returns t+d, or never if the sum overflows.
func later(t, d time.Duration) time.Duration {
	if d > never-max(t, 0) {
		return never
	}
	return t + d
}
