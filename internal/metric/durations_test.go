package metric_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

type timed struct {
	Reads uint64           `json:"reads"`
	Read  metric.Durations `json:"-" metric:"read" help:"Time of a read."`
	Disk  struct {
		Write metric.Durations `json:"-" metric:"write"`
	}
}

// TestDurationsCountsByPowersOfTwoMicroseconds compares the bucket of a duration with a comparison
// against each bound, at and beside every bound.
func TestDurationsCountsByPowersOfTwoMicroseconds(t *testing.T) {
	naive := func(d time.Duration) int {
		for i := range metric.DurationBuckets {
			if d <= time.Microsecond<<i {
				return i
			}
		}
		return metric.DurationBuckets
	}
	durations := []time.Duration{-1, 0, 1, time.Hour, 1<<63 - 1}
	for i := range metric.DurationBuckets + 1 {
		bound := time.Microsecond << i
		durations = append(durations, bound-1, bound, bound+1, bound+bound/2)
	}
	for _, d := range durations {
		var h, want metric.Durations
		h.Observe(d)
		want.Counts[naive(d)], want.Sum = 1, max(d, 0)
		if h != want {
			t.Errorf("%v: %v, want %v", d, h, want)
		}
	}
}

func TestCumulativeCountsUpToEachBound(t *testing.T) {
	var h metric.Durations
	for _, d := range []time.Duration{time.Microsecond, 3 * time.Microsecond, time.Minute} {
		h.Observe(d)
	}
	count, upTo := h.Cumulative()
	if count != 3 || len(upTo) != metric.DurationBuckets {
		t.Errorf("%d durations in %d buckets", count, len(upTo))
	}
	for bound, want := range map[float64]uint64{1e-6: 1, 2e-6: 1, 4e-6: 2, 8.388608: 2} {
		if got, ok := upTo[bound]; !ok || got != want {
			t.Errorf("up to %v s: %d, want %d", bound, got, want)
		}
	}
}

// TestHistogramsAreSummedAndAreNoNumbers: Add and AddCounters add them, EachDurations yields them, and
// Each passes over them.
func TestHistogramsAreSummedAndAreNoNumbers(t *testing.T) {
	var from, sum timed
	from.Reads = 2
	from.Read.Observe(time.Millisecond)
	from.Disk.Write.Observe(time.Second)
	metric.Add(&sum, &from)
	metric.AddCounters(&sum, &from)
	var names []string
	metric.EachDurations(&sum, func(f *metric.Field, d *metric.Durations) {
		names = append(names, f.Name+": "+f.Help)
		if count, _ := d.Cumulative(); count != 2 {
			t.Errorf("%s: %d durations, want 2", f.Name, count)
		}
	})
	if d := cmp.Diff([]string{"read: Time of a read.", "write: "}, names); d != "" {
		t.Error(d)
	}
	if sum.Read.Sum != 2*time.Millisecond || sum.Disk.Write.Sum != 2*time.Second || sum.Reads != 4 {
		t.Errorf("sums %v", sum)
	}
	metric.Each(&sum, func(f *metric.Field, _ float64) {
		if f.Name != "reads" {
			t.Errorf("Each yields %s", f.Name)
		}
	})
}

func TestObserveAllocatesNothing(t *testing.T) {
	var h metric.Durations
	if n := testing.AllocsPerRun(1000, func() { h.Observe(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
