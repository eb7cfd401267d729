package load

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// phantomAfter is how long the account must have more requests of a worker than the worker's
// engine reports, before the difference counts as phantoms. Requests, reports and ends of
// requests take time to travel.
const phantomAfter = 5 * time.Second

// surplus describes the requests of one worker that the account has and the engine does
// not report.
type surplus struct {
	// leastSurplus is the smallest surplus in the reports since the time surplusSince; 0 means
	// that the last report showed no surplus.
	leastSurplus int
	surplusSince time.Duration
	// phantoms are the requests that the engine does not have.
	phantoms int
}

// phantom reports whether Reconcile found r to be a phantom, here or at the router of r.
func (r *request) phantom() bool { return r.phantomChanges%2 == 1 }

// setPhantom sets r.phantomChanges, and counts the phantoms.
func (s *surplus) setPhantom(r *request, changes uint32) {
	was := r.phantom()
	r.phantomChanges = changes
	switch is := r.phantom(); {
	case is && !was:
		s.phantoms++
	case was && !is:
		s.phantoms--
	}
}

// originNumber returns the number that the router of r gave the booking. A router that knows of a booking
// gives its next one a higher number. So the order of these numbers is the same at all routers.
func (r *request) originNumber() uint64 {
	if r.router != 0 {
		return r.foreignNumber
	}
	return r.bookingNumber
}

// Reconcile compares the account with the numbers of requests that a worker's engine
// reports, and returns the number of new phantoms. A phantom is a request whose client has
// vanished. Three things must hold for phantomAfter: the account has more requests than the
// engine, the request's prefill is not complete, and nothing was heard of the request.
// Reconcile removes the prefill load of phantoms, oldest first, and keeps the requests
// active. A request that waits in the engine is not computed yet, so as many requests with
// prefill are real.
//
// The account has the requests of all routers, and each router decides about its own. All of them
// consider the requests in one order, so that they find the same phantoms. The router of a phantom says
// so with PhantomChanges.
func (a *Account) Reconcile(worker kv.Worker, running, waiting uint64) (phantoms int) {
	w := a.workers[worker]
	if w == nil {
		return 0
	}
	inEngine, queued := int(min(running, math.MaxInt32)), int(min(waiting, math.MaxInt32))
	now := a.clock()
	unreported := w.requests.n - w.phantoms - inEngine - queued
	// Only requests with prefill are phantoms, and as many of them as the engine queues are real.
	more := min(unreported, w.prefill.requests-queued)
	switch {
	case more <= 0:
		w.leastSurplus = 0
		return 0
	case w.leastSurplus == 0: // the first report with a surplus
		w.leastSurplus, w.surplusSince = more, now
		return 0
	}
	if w.leastSurplus = min(w.leastSurplus, more); now-w.surplusSince < phantomAfter {
		return 0
	}
	for _, r := range a.suspects(w, now) {
		if r.router != 0 {
			// Its router finds the phantom too. A router that finds none knows more of the request.
			r.suspected = now-r.lastHeard >= phantomAfter
			continue
		}
		a.handOver(r, now)
		w.prefill.remove(r, now)
		w.setPhantom(r, r.phantomChanges+1)
		a.ended(r.id)
		a.journal.progressed(r)
		phantoms++
	}
	w.leastSurplus = 0
	a.stats.Phantoms += uint64(phantoms)
	a.updateColumns(w, now)
	return phantoms
}

// suspects returns the w.leastSurplus requests of a worker that are phantoms, the oldest ones. Own
// requests are silent for phantomAfter. A foreign request may be: a router that has just learned of it
// does not know for how long it was silent.
func (a *Account) suspects(w *workload, now time.Duration) (all []*request) {
	for r := w.requests.first; r != nil; r = r.links[byArrival].next {
		silent := r.router != 0 || now-r.lastHeard >= phantomAfter
		if r.prefillTokens > 0 && silent && !r.suspected {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *request) int {
		return cmp.Or(cmp.Compare(a.originNumber(), b.originNumber()), strings.Compare(a.id, b.id))
	})
	return all[:min(len(all), w.leastSurplus)]
}
