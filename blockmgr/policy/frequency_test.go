package policy

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func newFilter(t rapid.TB, o FrequencyOptions) *FrequencyFilter {
	t.Helper()
	f, err := NewFrequencyFilter(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// advance lets time pass in a bubble of synctest.
func advance(d time.Duration) { <-time.After(d) }

// attempts asks n times for h and answers with y and n.
func attempts(f *FrequencyFilter, h kv.SequenceHash, n int) string {
	var s strings.Builder
	for range n {
		if f.ShouldOffload(h) {
			s.WriteByte('y')
		} else {
			s.WriteByte('n')
		}
	}
	return s.String()
}

func TestCountsDecay(t *testing.T) {
	for _, tc := range []struct {
		attempts, ticks int
		want            string
		entries         int
	}{
		{attempts: 1, ticks: 0, want: "y", entries: 1},
		{attempts: 1, ticks: 1, want: "n", entries: 0},
		{attempts: 2, ticks: 1, want: "y", entries: 1},
		{attempts: 4, ticks: 7, want: "y", entries: 1}, // 8, then 1, then 2
		{attempts: 4, ticks: 8, want: "n", entries: 0},
		{attempts: 4, ticks: 1_000_000, want: "n", entries: 0},
	} {
		t.Run(fmt.Sprintf("%d attempts and %d ticks", tc.attempts, tc.ticks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				together, apart := newFilter(t, FrequencyOptions{}), newFilter(t, FrequencyOptions{})
				attempts(together, 1, tc.attempts)
				attempts(apart, 1, tc.attempts)
				for range min(tc.ticks, 10) {
					advance(10 * time.Minute)
					apart.Stats()
				}
				advance(time.Duration(tc.ticks-min(tc.ticks, 10)) * 10 * time.Minute)
				for name, f := range map[string]*FrequencyFilter{"asked at the end": together, "asked each time": apart} {
					if got := f.Stats().Entries; got != tc.entries {
						t.Errorf("%s: %d entries, want %d", name, got, tc.entries)
					}
					if got := attempts(f, 1, 1); got != tc.want {
						t.Errorf("%s: %s, want %s", name, got, tc.want)
					}
				}
			})
		})
	}
}

func TestCountsStopDoublingAtTheLimit(t *testing.T) {
	f := newFilter(t, FrequencyOptions{})
	for range 200 {
		f.ShouldOffload(1)
	}
	if level := f.entries.at(f.index[1]).level; level != countLimit {
		t.Errorf("count %d", level)
	}
}

func TestFrequencyOptionsNameWhatIsOutOfRange(t *testing.T) {
	for _, tc := range []struct {
		o    FrequencyOptions
		want string
	}{
		{FrequencyOptions{Decay: -1}, "frequency filter: decay: got -1ns, want 0 (the default) or more"},
		{FrequencyOptions{MaxEntries: -1}, "frequency filter: max entries: got -1, want 0 (the default) to 1073741824"},
		{FrequencyOptions{MaxEntries: 1<<30 + 1}, "frequency filter: max entries: got 1073741825, want 0 (the default) to 1073741824"},
	} {
		if _, err := NewFrequencyFilter(tc.o); err == nil || err.Error() != tc.want {
			t.Errorf("%+v: %v, want %s", tc.o, err, tc.want)
		}
	}
}

// walkTwin is a filter that walks over all counts when they lose 1.
type walkTwin struct {
	o       FrequencyOptions
	counts  map[kv.SequenceHash]uint64
	elapsed time.Duration
	stats   FrequencyStats
}

func (w *walkTwin) lower() {
	for h, n := range w.counts {
		if n == 1 {
			delete(w.counts, h)
		} else {
			w.counts[h] = n - 1
		}
	}
}

func (w *walkTwin) advance(d time.Duration) {
	for w.elapsed += d; w.elapsed >= w.o.Decay; w.elapsed -= w.o.Decay {
		w.lower()
	}
}

func (w *walkTwin) count(h kv.SequenceHash) uint64 {
	if n, ok := w.counts[h]; ok {
		w.counts[h] = min(2*n, countLimit)
		return w.counts[h]
	}
	w.counts[h] = 1
	before := len(w.counts)
	for len(w.counts) > w.o.MaxEntries {
		w.lower()
		w.elapsed = 0
	}
	w.stats.Pruned += uint64(before - len(w.counts))
	return 1
}

func (w *walkTwin) shouldOffload(h kv.SequenceHash) bool {
	if w.count(h) >= uint64(w.o.Min) {
		w.stats.Accepted++
		return true
	}
	w.stats.Rejected++
	return false
}

// checkEntries fails when what the filter holds besides the counts is wrong.
func checkEntries(t rapid.TB, f *FrequencyFilter) {
	t.Helper()
	if int(f.filled) != len(f.index) {
		t.Fatalf("%d entries, %d in the index", f.filled, len(f.index))
	}
	// The hand looks at whole entries, hence the few beyond the half.
	if limit := f.options.MaxEntries*3/2 + clearedPerInsertion; int(f.filled) > limit {
		t.Fatalf("%d entries, want at most %d", f.filled, limit)
	}
	levels := 0
	for _, n := range f.atLevel {
		levels += int(n)
	}
	if levels != f.known {
		t.Fatalf("%d blocks are known, levels say %d", f.known, levels)
	}
}

// step is one thing that happens to a filter: time passes, or if none does a block
// is asked for or hit.
type step struct {
	passes time.Duration
	hash   kv.SequenceHash
}

func drawStep(hashes uint64) *rapid.Generator[step] {
	return rapid.Custom(func(t *rapid.T) step {
		if rapid.IntRange(0, 9).Draw(t, "time") == 0 {
			return step{passes: time.Duration(rapid.Int64Range(1, int64(4*time.Minute)).Draw(t, "passes"))}
		}
		return step{hash: kv.SequenceHash(rapid.Uint64Range(0, hashes).Draw(t, "hash"))}
	})
}

// follow takes the steps with a filter and its twin and says where they differ.
func follow(f *FrequencyFilter, twin *walkTwin, steps []step) string {
	for i, s := range steps {
		switch {
		case s.passes > 0:
			advance(s.passes)
			twin.advance(s.passes)
		default:
			if got, want := f.ShouldOffload(s.hash), twin.shouldOffload(s.hash); got != want {
				return fmt.Sprintf("step %d %+v: %v, want %v", i, s, got, want)
			}
		}
		want := twin.stats
		want.Entries = len(twin.counts)
		if got := f.Stats(); got != want {
			return fmt.Sprintf("step %d %+v: stats %+v, want %+v", i, s, got, want)
		}
	}
	return ""
}

func TestFrequencyFilterCountsAsAWalkDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := FrequencyOptions{
			Min:        rapid.Uint32Range(1, 6).Draw(rt, "min"),
			Decay:      time.Minute,
			MaxEntries: rapid.IntRange(1, 20).Draw(rt, "max entries"),
		}
		steps := rapid.SliceOfN(drawStep(rapid.Uint64Range(1, 60).Draw(rt, "hashes")), 1, 150).Draw(rt, "steps")
		// A bubble may not panic as a failing rapid test does.
		var difference string
		var f *FrequencyFilter
		synctest.Test(t, func(t *testing.T) {
			f = newFilter(t, o)
			difference = follow(f, &walkTwin{o: o, counts: make(map[kv.SequenceHash]uint64)}, steps)
		})
		if difference != "" {
			rt.Fatal(difference)
		}
		checkEntries(rt, f)
	})
}

func TestForgottenBlocksAreClearedAway(t *testing.T) {
	const limit = 1000
	f := newFilter(t, FrequencyOptions{MaxEntries: limit})
	for h := range kv.SequenceHash(50 * limit) {
		f.ShouldOffload(h)
		checkEntries(t, f)
	}
}

func TestConcurrentAttemptsAreAllCounted(t *testing.T) {
	const workers, rounds = 4, 500
	f := newFilter(t, FrequencyOptions{MaxEntries: 64})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				f.ShouldOffload(kv.SequenceHash(i % 100))
				f.ShouldOffload(kv.SequenceHash((i + w) % 100))
			}
		})
	}
	wg.Wait()
	if got := f.Stats(); got.Accepted+got.Rejected != 2*workers*rounds {
		t.Errorf("%d answers, want %d", got.Accepted+got.Rejected, 2*workers*rounds)
	}
	checkEntries(t, f)
}

// The filter knows as many blocks as the tiers can hold, twice over, unless a number
// was given.
func TestFilterIsSizedFromTheTiers(t *testing.T) {
	for _, c := range []struct {
		given  int
		expect []uint64
		want   int
	}{
		{0, nil, leastEntries}, {0, []uint64{10}, leastEntries}, {0, []uint64{10_000_000, 5}, 20_000_000},
		{0, []uint64{1 << 62}, maxFrequencyEntries}, {100, []uint64{10_000_000}, 100},
	} {
		f, err := NewFrequencyFilter(FrequencyOptions{MaxEntries: c.given})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.expect {
			f.Expect(n)
		}
		if f.options.MaxEntries != c.want {
			t.Errorf("%d given, tiers of %v: counts %d blocks, want %d", c.given, c.expect, f.options.MaxEntries, c.want)
		}
	}
}
