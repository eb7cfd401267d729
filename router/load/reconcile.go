package load

import (
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// phantomAfter is how long the account has more requests of a worker than its engine
// before it believes the engine: a request is on its way for a while, and so is the
// news of its end.
const phantomAfter = 5 * time.Second

// surplus is how many requests an account has beyond those of an engine.
type surplus struct {
	// least is the smallest number since then, 0 for none.
	least int
	since time.Duration
	// phantoms are the requests that were found not to be there.
	phantoms int
}

// acquit takes back that r is a phantom.
func (s *surplus) acquit(r *request) {
	if r.phantom {
		r.phantom = false
		s.phantoms--
	}
}

// Reconcile takes in how many requests the engine of a worker says that it has. When
// the account had more of them for a while, their clients have vanished: of as many,
// the oldest whose prefills were not marked complete and of which nothing was heard
// for that while, it takes the prefill off. They stay active otherwise. It returns
// their number. Requests that wait in the engine are not computed yet, so that as
// many of those not marked are there, even if others have vanished after their
// prefill.
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
