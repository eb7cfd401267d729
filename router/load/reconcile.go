package load

import (
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// phantomAfter is how long the account must have more requests of a worker than its
// engine before the account believes the engine. Requests and the news of their end
// travel for a while.
const phantomAfter = 5 * time.Second

// surplus is the number of requests that an account has beyond those of an engine.
type surplus struct {
	// least is the smallest surplus since then, 0 for none.
	least int
	since time.Duration
	// phantoms are the requests that the engine does not have.
	phantoms int
}

// acquit says that r is no phantom after all.
func (s *surplus) acquit(r *request) {
	if r.phantom {
		r.phantom = false
		s.phantoms--
	}
}

// Reconcile compares the account with the number of requests that a worker's engine
// reports, and returns the number of phantoms. A phantom is a request whose client
// has vanished: the account has had more requests than the engine for a while, the
// prefill was never marked complete, and nothing was heard of the request for that
// while. The oldest such requests lose their prefill load and stay active
// otherwise. Requests that wait in the engine are not computed yet, so as many
// unmarked requests are real.
func (a *Account) Reconcile(worker kv.Worker, running, waiting uint64) (phantoms int) {
	w := a.workers[worker]
	if w == nil {
		return 0
	}
	r, q := int(min(running, math.MaxInt32)), int(min(waiting, math.MaxInt32))
	now, more := a.clock(), min(w.running.n-w.phantoms-r-q, w.prefill.requests-q)
	switch {
	case more <= 0:
		w.least = 0
		return 0
	case w.least == 0:
		w.least, w.since = more, now
		return 0
	}
	if w.least = min(w.least, more); now-w.since < phantomAfter {
		return 0
	}
	for r := w.running.first; r != nil && phantoms < w.least; r = r.in[byArrival].next {
		if r.prefill == 0 || now-r.heard < phantomAfter {
			continue
		}
		w.prefill.remove(r, now)
		r.phantom = true
		phantoms++
		a.ended(r.id)
	}
	w.phantoms += phantoms
	w.least = 0
	a.stats.Phantoms += uint64(phantoms)
	a.settle(w, now)
	return phantoms
}
