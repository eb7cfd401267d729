package load

import (
	"math"
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

// notPhantom clears the phantom mark of r, because r has ended or was heard of.
func (s *surplus) notPhantom(r *request) {
	if r.phantom {
		r.phantom = false
		s.phantoms--
	}
}

// Reconcile compares the account with the numbers of requests that a worker's engine
// reports, and returns the number of new phantoms. A phantom is a request whose client has
// vanished. Three things must hold for phantomAfter: the account has more requests than the
// engine, the request's prefill is not complete, and nothing was heard of the request.
// Reconcile removes the prefill load of phantoms, oldest first, and keeps the requests
// active. A request that waits in the engine is not computed yet, so as many requests with
// prefill are real.
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
	foreign := 0
	for r := w.requests.first; r != nil && phantoms < w.leastSurplus; r = r.links[byArrival].next {
		if r.prefillTokens == 0 || now-r.lastHeard < phantomAfter {
			continue
		}
		if phantoms++; r.router != 0 { // its router finds the same phantom, and says so
			foreign++
			continue
		}
		w.prefill.remove(r, now)
		r.phantom = true
		a.ended(r.id)
		a.journal.progressed(r)
	}
	phantoms -= foreign
	w.phantoms += phantoms
	w.leastSurplus = 0
	a.stats.Phantoms += uint64(phantoms)
	a.updateColumns(w, now)
	return phantoms
}
