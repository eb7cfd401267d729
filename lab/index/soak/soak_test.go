package soak

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
)

func short() Options {
	return Options{
		Duration: 300 * time.Millisecond, Rate: 50_000, Lookups: 2000, Workers: 5, Pools: 2, Pool: 400, Seed: 5, Sample: 20 * time.Millisecond,
	}
}

// A short run writes, reads, decides and samples, everything that disturbs happens,
// and in the end all owners are right.
func TestAShortRunIsRight(t *testing.T) {
	var out strings.Builder
	o := short()
	o.Out = &out
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("%v, output:\n%s", err, out.String())
	}
	last := regexp.MustCompile(`(?m)^[1-9]\d* workers left and as many came; [1-9]\d* dumps replaced an owner's blocks; [1-9]\d* owners lost all of them; [1-9]\d* decisions; the index by its own account -?[\d.]+ % a minute; slopes from [1-9]\d* samples
soak-index: blocks_per_s=[1-9]\d* lookups=[1-9]\d* heap_slope_pct_per_min=-?[\d.]+ rss_slope_pct_per_min=-?[\d.]+ digests_ok=7/7\n\z`)
	if !last.MatchString(out.String()) {
		t.Errorf("output:\n%s", out.String())
	}
}

// An index that was told something else than its owners fails the check, and so
// does one that keeps something of an owner that has left.
func TestDifferencesAreFound(t *testing.T) {
	w, err := newWorld(short().withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if err := w.serve(); err != nil {
			t.Fatal(err)
		}
	}
	if right, err := w.check(); right != len(w.owners) || err != nil {
		t.Fatalf("before: %d of %d right, %v", right, len(w.owners), err)
	}
	w.index.RemoveOwner(w.owners[0].name)
	w.owners[1].digest++
	right, err := w.check()
	if right != len(w.owners)-2 || err == nil || !strings.Contains(err.Error(), "it was told") || !strings.Contains(err.Error(), "its owners") {
		t.Errorf("%d of %d right, %v", right, len(w.owners), err)
	}
}

// After a dump has replaced an owner's blocks, and after a worker has left and
// another has come, everything is as it was told.
func TestDisturbancesLeaveTheTruth(t *testing.T) {
	w, err := newWorld(short().withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		for range 20 {
			if err := w.serve(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.disturb(); err != nil {
			t.Fatal(err)
		}
		for w.index.Sweep(sweepRuns) {
		}
		if _, err := w.check(); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range w.index.Members().List {
		if m.Worker.ID == 0 || m.Pool == 0 {
			t.Errorf("member %+v", m)
		}
	}
	if w.left == 0 || w.replaced == 0 || w.cleared == 0 {
		t.Errorf("%d left, %d replaced, %d cleared: choose another seed", w.left, w.replaced, w.cleared)
	}
}

// Slopes are those of a straight line through the samples after the first fifth.
func TestSlopes(t *testing.T) {
	var samples []sample
	for i := range 60 {
		at := time.Duration(i) * 10 * time.Second
		s := sample{at: at, heap: 1000, rss: 1000 + uint64(i)}
		if at < 2*time.Minute {
			s.heap = 1 // what comes first does not count
		}
		samples = append(samples, s)
	}
	late := settled(samples, 10*time.Minute)
	if len(late) != 48 || late[0].at != 2*time.Minute {
		t.Fatalf("%d samples from %s", len(late), late[0].at)
	}
	if heap := slope(late, heapOf); math.Abs(heap) > 1e-9 {
		t.Errorf("heap slope %g", heap)
	}
	// Six bytes a minute, of 1035.5 on average.
	if rss := slope(late, rssOf); rss < 0.579 || rss > 0.580 {
		t.Errorf("slope of resident memory %g", rss)
	}
	if s := slope(late[:1], rssOf); s != 0 {
		t.Errorf("slope of one sample %g", s)
	}
	if s := settled(samples[:3], 10*time.Minute); s != nil {
		t.Errorf("settled %v", s)
	}
}

// Long runs fail by slope and rate; short ones cannot.
func TestJudge(t *testing.T) {
	o := Options{Duration: MinJudged, MaxSlope: 1, Rate: 1000}
	for _, c := range []struct {
		got  slopes
		rate float64
		want string
	}{
		{slopes{0.9, -3, 0}, 960, ""},
		{slopes{1.1, 0, 0}, 1000, "heap grows by 1.100 % a minute"},
		{slopes{0, 2, 0}, 1000, "resident memory grows by 2.000 %"},
		{slopes{0, 0, 3}, 1000, ""}, // it is in the heap; its own steps are coarse
		{slopes{}, 900, "900 blocks/s"},
	} {
		err := o.judge(c.got, c.rate)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	o.Duration--
	if err := o.judge(slopes{9, 9, 9}, 0); err != nil {
		t.Errorf("a short run was judged: %v", err)
	}
}
