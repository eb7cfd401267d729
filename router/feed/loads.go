package feed

import (
	"maps"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// maxLoads bounds the owners whose report is kept.
	maxLoads = 1 << 15
	// loadTimeout is how long a report is shown.
	loadTimeout = time.Minute
)

// Load is the last load report of an owner.
type Load struct {
	kvevent.LoadReport
	// At is when the report came, by the local clock.
	At time.Time
}

// loadTable keeps the last load report of each owner. It is safe for concurrent use.
type loadTable struct {
	mu   sync.Mutex
	last map[kv.Owner]Load
	// accepted counts kept reports, undecodable counts reports of unknown form, and refused
	// counts reports without room.
	accepted, undecodable, refused uint64
}

func newLoadTable() *loadTable { return &loadTable{last: make(map[kv.Owner]Load)} }

// add decodes and keeps a report. It returns false when the report is not kept.
func (t *loadTable) add(data []byte, now time.Time) (kvevent.LoadReport, bool) {
	r, err := kvevent.DecodeLoadReport(data)
	return r, t.keep(&r, err, now)
}

// keep keeps a report as the owner's last one and returns true. It only counts a report that could
// not be decoded, for which err is set, or that finds no room.
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
	t.accepted++
	t.last[r.Owner] = Load{LoadReport: *r, At: now}
	return true
}

// expireLocked removes the reports older than loadTimeout.
func (t *loadTable) expireLocked(now time.Time) {
	maps.DeleteFunc(t.last, func(_ kv.Owner, l Load) bool { return now.Sub(l.At) > loadTimeout })
}

// all returns the reports of the last loadTimeout.
func (t *loadTable) all(now time.Time) map[kv.Owner]Load {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)
	return maps.Clone(t.last)
}

// LoadStats counts load reports. The metric names follow "blockyard_router_".
type LoadStats struct {
	Taken       uint64 `metric:"load_reports" help:"Load reports accepted."`
	Undecodable uint64 `metric:"load_reports_undecodable" help:"Load reports of unknown form."`
	Refused     uint64 `metric:"load_reports_refused" help:"Load reports of more owners than the router keeps."`
}

func (t *loadTable) stats() LoadStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return LoadStats{t.accepted, t.undecodable, t.refused}
}

// Loads returns the last load report of each worker and pool, at most a minute old.
func (s *Set) Loads(now time.Time) map[kv.Owner]Load { return s.loads.all(now) }

// LoadStats returns the counters of load reports.
func (s *Set) LoadStats() LoadStats { return s.loads.stats() }
