package split

import (
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// lapseFor is how long a worker that handed nothing over gets no prefills.
	lapseFor = time.Minute
	// maxLapses bounds the remembered workers. A router has at most as many.
	maxLapses = 4096
)

// Lapses remembers the prefill workers that handed nothing over, so that not every request
// computes its prompt twice. The zero value is ready, and is safe for concurrent use.
type Lapses struct {
	mu    sync.Mutex
	until map[kv.WorkerID]time.Time
}

// Add records that a worker handed nothing over at a time. first is false while that is known.
func (l *Lapses) Add(w kv.WorkerID, now time.Time) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.until[w]) {
		return false
	}
	for id, until := range l.until {
		if !now.Before(until) {
			delete(l.until, id)
		}
	}
	if l.until == nil {
		l.until = make(map[kv.WorkerID]time.Time)
	}
	if len(l.until) < maxLapses {
		l.until[w] = now.Add(lapseFor)
	}
	return true
}

// Has reports whether a worker handed nothing over in the last minute.
func (l *Lapses) Has(w kv.WorkerID, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until[w])
}
