package blockmgr

import (
	"maps"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

// durations returns the number of durations in each histogram of a pool, by name.
func (p *testPool) durations() map[string]uint64 {
	counts := make(map[string]uint64)
	s := p.Stats()
	metric.EachDurations(&s, func(f *metric.Field, d *metric.Durations) { counts[f.Name], _ = d.Cumulative() })
	return counts
}

// TestEachPathIsTimed: a block is sealed, written and read once, and each lookup counts once, whether
// it finds, misses or waits for the disk.
func TestEachPathIsTimed(t *testing.T) {
	p := diskPool(t, nil)
	blocks := chain(1, 8)
	check := func(what string, want map[string]uint64) {
		t.Helper()
		if got := p.durations(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	p.store(blocks)
	p.quiesce()
	check("stored", map[string]uint64{"lookup": 0, "seal": 8, "disk_write": 8, "disk_read": 0})
	p.find(blocks[:4])
	p.find(chain(2, 3))
	check("hit and missed", map[string]uint64{"lookup": 2, "seal": 8, "disk_write": 8, "disk_read": 0})
	p.evictHost(blocks)
	before := p.durations()
	p.find(blocks[:4])
	p.quiesce()
	before["lookup"]++
	before["disk_read"] += 4
	check("read from disk", before)
}
