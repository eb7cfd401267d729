package feed

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// An engine outlives the publisher that speaks for it: its agent may be restarted. So a
// worker that leaves is no candidate any more, and its requests and measures stay until
// it is back, or for as long as a silent request stays on the account.

// maxAbsent bounds the absent workers of a model.
const maxAbsent = 4096

// absentWorkers are workers that left and whose engine may still run.
type absentWorkers struct {
	// keep is how long a worker may be absent.
	keep time.Duration
	left map[kv.Worker]absence
}

// absence is how a worker left.
type absence struct {
	// engine is the incarnation of its engine, 0 when it was not announced.
	engine uint64
	// since is zero until the next expire.
	since time.Time
}

func newAbsentWorkers(keep time.Duration) absentWorkers {
	return absentWorkers{keep: keep, left: make(map[kv.Worker]absence)}
}

func (a *absentWorkers) len() int { return len(a.left) }

// add notes that a worker left; false when there are too many.
func (a *absentWorkers) add(w kv.Worker, engine uint64) bool {
	if len(a.left) >= maxAbsent {
		return false
	}
	a.left[w] = absence{engine: engine}
	return true
}

// take returns how a worker left, and forgets it.
func (a *absentWorkers) take(w kv.Worker) (absence, bool) {
	was, ok := a.left[w]
	delete(a.left, w)
	return was, ok
}

// expire returns the workers that were absent for too long, and forgets them.
func (a *absentWorkers) expire(now time.Time) (over []kv.Worker) {
	for w, was := range a.left {
		switch {
		case was.since.IsZero():
			was.since = now
			a.left[w] = was
		case now.Sub(was.since) > a.keep:
			over = append(over, w)
			delete(a.left, w)
		}
	}
	return over
}

// sameEngine reports whether two incarnations may be those of one engine. Where one of
// them was not announced they may: requests of a dead engine are freed by their callers,
// and those of a living one must not be lost.
func sameEngine(a, b uint64) bool { return a == 0 || b == 0 || a == b }
