package estimate

import (
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/router/index"
)

// column is what a decision needs of one worker. The columns of all members lie
// side by side, because a decision reads all of them. A column is made again
// whenever something of its worker changes. Times count from Estimator.start.
type column struct {
	worker *worker // nil for an unknown worker
	// perSecond is the worker's own prefill rate, each the fixed cost of a request
	// in seconds. Both hold until until.
	perSecond, each float64
	until           time.Duration
	// tokens are to be computed for the pending requests whose blocks have arrived,
	// and requests is the number of those requests. next is when the blocks of
	// another request arrive.
	tokens, requests float64
	next             time.Duration
	// first are the tokens of the request that has been computed since computing.
	first     float64
	computing time.Duration
	// others are requests that this router did not send. The number holds until othersUntil.
	others      float64
	othersUntil time.Duration
	// followed is what the pending requests have on the scheduler's account.
	followed int64
}

const (
	never     time.Duration = math.MaxInt64
	longAgo   time.Duration = math.MinInt64
	notMember               = -1 // the number of a worker that is no member
)

// align makes the columns follow a list of members. It costs nothing if they do
// already.
func (e *Estimator) align(m *index.Members, now time.Time) {
	if m == e.aligned {
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
		if w == nil {
			e.columns[i] = column{until: longAgo, next: never}
			continue
		}
		w.member = i
		e.columns[i] = e.columnOf(w, now)
	}
	e.aligned = m
}

// settle updates the column of a worker.
func (e *Estimator) settle(w *worker, now time.Time) {
	if w.member != notMember {
		e.columns[w.member] = e.columnOf(w, now)
	}
}

func (e *Estimator) columnOf(w *worker, now time.Time) column {
	p := &w.prefill
	c := column{worker: w, until: longAgo, next: never, followed: p.followed}
	if p.rate.count >= e.opts.MinSamples {
		c.perSecond, c.each = p.rate.value, p.each(&e.opts, now)
		c.until = later(p.rate.last.Sub(e.start), e.opts.MaxAge)
	}
	for _, r := range p.pending {
		if r.ready.After(now) {
			c.next = min(c.next, r.ready.Sub(e.start))
			continue
		}
		c.tokens += float64(r.tokens)
		c.requests++
	}
	if r := p.first(); r != nil && !r.ready.After(now) {
		c.first, c.computing = float64(r.tokens), p.busySince().Sub(e.start)
	}
	if w.waiting > 0 {
		c.others, c.othersUntil = float64(w.waiting), later(w.reported.Sub(e.start), waitingHolds)
	}
	return c
}

// later returns d after t, or never.
func later(t, d time.Duration) time.Duration {
	if d > never-max(t, 0) {
		return never
	}
	return t + d
}
