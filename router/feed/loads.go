package feed

import (
	"maps"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// maxLoads bounds the owners whose load is kept.
	maxLoads = 1 << 15
	// loadTimeout is how long a report is shown after it came.
	loadTimeout = time.Minute
)

// Load is the last load report of an owner.
type Load struct {
	kvevent.LoadReport
	// At is when it came, by this machine's clock.
	At time.Time
}

// loadTable keeps the last report of each owner. It may be used from any goroutine.
type loadTable struct {
	mu   sync.Mutex
	last map[kv.Owner]Load
	// taken counts reports, undecodable those of unknown form, refused those that
	// there was no room for.
	taken, undecodable, refused uint64
}

func newLoadTable() *loadTable { return &loadTable{last: make(map[kv.Owner]Load)} }

// take keeps a report that came now; false when it is not kept.
func (t *loadTable) take(data []byte, now time.Time) (kvevent.LoadReport, bool) {
	r, err := kvevent.DecodeLoadReport(data)
	return r, t.keep(&r, err, now)
}

// keep keeps what was decoded, and counts it.
func (t *loadTable) keep(r *kvevent.LoadReport, err error, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.undecodable++
		return false
	}
	if _, known := t.last[r.Owner]; !known && len(t.last) >= maxLoads {
		t.expireLocked(now)
		if len(t.last) >= maxLoads {
			t.refused++
			return false
		}
	}
	t.taken++
	t.last[r.Owner] = Load{LoadReport: *r, At: now}
	return true
}

func (t *loadTable) expireLocked(now time.Time) {
	maps.DeleteFunc(t.last, func(_ kv.Owner, l Load) bool { return now.Sub(l.At) > loadTimeout })
}

// all returns what is not too old.
func (t *loadTable) all(now time.Time) map[kv.Owner]Load {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)
	return maps.Clone(t.last)
}

// LoadStats count load reports: Taken were kept, Undecodable are of unknown form,
// and Refused found too many other owners.
type LoadStats struct {
	Taken, Undecodable, Refused uint64
}

func (t *loadTable) stats() LoadStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return LoadStats{t.taken, t.undecodable, t.refused}
}

// Loads are the last load reports of workers and pools; those that are older than a
// minute are left out.
func (s *Set) Loads(now time.Time) map[kv.Owner]Load { return s.loads.all(now) }

// LoadStats is a snapshot of the counters of load reports.
func (s *Set) LoadStats() LoadStats { return s.loads.stats() }
