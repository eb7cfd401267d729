package approx_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
)

func newApprox(t testing.TB, o approx.Options) *approx.Index {
	t.Helper()
	a, err := approx.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// route records a decision for a worker that is made known.
func route(t testing.TB, a *approx.Index, w kv.Worker, prompt []kv.LocalHash) {
	t.Helper()
	if err := a.SetMember(w, 0, true); err != nil {
		t.Fatal(err)
	}
	if err := a.Record(w, prompt, kv.AppendSequence(nil, prompt)); err != nil {
		t.Fatal(err)
	}
}

func wantApprox(t testing.TB, a *approx.Index, what string, prompt []kv.LocalHash, want map[kv.Worker]index.Hits) {
	t.Helper()
	var m index.Matches
	if err := a.Match(&m, prompt); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, workerHits(t, &m), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestApproxExpiry: a decision lives for the TTL, rounded up to tenths of a
// second and counted anew when it is made again; without a TTL it is over at once.
func TestApproxExpiry(t *testing.T) {
	prompt := series(1, 5)
	for name, tc := range map[string]struct {
		ttl time.Duration
		// againAt is when the first three blocks are routed again; 0 for never.
		againAt time.Duration
		want    map[time.Duration]uint32 // device hits at a time after the start
	}{
		"25 ms live for up to 100":          {25 * time.Millisecond, 0, map[time.Duration]uint32{0: 5, 24: 5, 99: 5, 100: 0, 150: 0}},
		"a whole number of tenths is exact": {300 * time.Millisecond, 0, map[time.Duration]uint32{299: 5, 300: 0}},
		"rounded up, not to the nearest":    {301 * time.Millisecond, 0, map[time.Duration]uint32{399: 5, 400: 0}},
		"routed again lives longer":         {300 * time.Millisecond, 200, map[time.Duration]uint32{299: 5, 300: 3, 499: 3, 500: 0}},
		"zero is over at once":              {0, 0, map[time.Duration]uint32{0: 0, 1: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			start := now
			a := newApprox(t, approx.Options{TTL: tc.ttl, Now: func() time.Time { return now }})
			route(t, a, worker(1, 0), prompt)
			again := tc.againAt > 0
			at := make([]time.Duration, 0, len(tc.want))
			for ms := range tc.want {
				at = append(at, ms)
			}
			slices.Sort(at)
			for _, ms := range at {
				if again && ms >= tc.againAt {
					now = start.Add(tc.againAt * time.Millisecond)
					route(t, a, worker(1, 0), prompt[:3])
					again = false
				}
				now = start.Add(ms * time.Millisecond)
				want := map[kv.Worker]index.Hits{worker(1, 0): device(tc.want[ms])}
				if tc.want[ms] == 0 {
					want = nil
				}
				wantApprox(t, a, (ms * time.Millisecond).String(), prompt, want)
			}
			if s := a.Stats(); s.Blocks != 0 || s.Index.Memberships != 0 || s.Expired != 5 {
				t.Errorf("at the end: %+v, want everything expired", s)
			}
		})
	}
}

// TestApproxExpiryDoesNotHoldUpDecisions: what is due all at once is left to the next tick
// but for a small part, and is gone after it.
func TestApproxExpiryDoesNotHoldUpDecisions(t *testing.T) {
	now := time.Unix(1000, 0)
	a := newApprox(t, approx.Options{TTL: time.Second, Now: func() time.Time { return now }})
	const many = 10_000
	route(t, a, worker(1, 0), series(1, many))
	now = now.Add(time.Minute)
	var m index.Matches
	if err := a.Match(&m, series(1, 3)); err != nil {
		t.Fatal(err)
	}
	if n := a.Stats().Expired; n == 0 || n > 1000 {
		t.Errorf("a question expired %d blocks, want some hundred", n)
	}
	route(t, a, worker(2, 0), series(5, 1))
	if n := a.Stats().Expired; n > 2000 {
		t.Errorf("a question and a decision expired %d blocks, want some hundred each", n)
	}
	if n, s := a.Tick(), a.Stats(); s.Expired != many || s.Blocks != 1 || n > many {
		t.Errorf("the tick expired %d blocks, %+v; want one left", n, s)
	}
}

// TestApproxRefusals: hashes that do not belong together, options out of range and
// calls after Close are errors and change nothing.
func TestApproxRefusals(t *testing.T) {
	for _, o := range []approx.Options{
		{TTL: -1}, {MaxBlocks: -1}, {MaxBlocks: math.MaxUint32}, {PruneRatio: -.1}, {PruneRatio: 1.1}, {PruneRatio: math.NaN()},
		{Index: index.Options{MaxOwners: -1}},
	} {
		if _, err := approx.New(o); err == nil {
			t.Errorf("options %+v were accepted", o)
		}
	}
	a := newApprox(t, approx.Options{TTL: time.Minute})
	w, prompt := worker(1, 0), series(1, 3)
	route(t, a, w, prompt[:2])
	if err := a.Record(w, prompt, kv.AppendSequence(nil, prompt[:2])); err == nil {
		t.Error("three local and two sequence hashes were accepted")
	}
	wantApprox(t, a, "after a bad decision", prompt, map[kv.Worker]index.Hits{w: device(2)})
	a.Close()
	a.Close()
	var m index.Matches
	for what, err := range map[string]error{
		"record":        a.Record(w, prompt, kv.AppendSequence(nil, prompt)),
		"match":         a.Match(&m, prompt),
		"set member":    a.SetMember(w, 0, true),
		"remove worker": a.RemoveWorker(w),
	} {
		if !errors.Is(err, approx.ErrClosed) {
			t.Errorf("%s after Close: %v, want ErrClosed", what, err)
		}
	}
	if n := a.Tick(); n != 0 || a.Stats().Blocks != 0 {
		t.Errorf("%d blocks expired after Close, %d left", n, a.Stats().Blocks)
	}
}

// TestApproxBesideEvents: what events told never expires with what was guessed
// beside it, the guess counts as the larger of the two, and no block counts on the
// device and below it.
func TestApproxBesideEvents(t *testing.T) {
	now := time.Unix(1000, 0)
	a := newApprox(t, approx.Options{TTL: time.Second, Now: func() time.Time { return now }})
	prompt := series(1, 8)
	told, both, guessed, gone := worker(1, 0), worker(2, 0), worker(3, 0), worker(4, 0)
	x := newIndex(t, told, both, guessed)
	store(t, x, told, kv.TierDevice, prompt, 0, 3)
	store(t, x, both, kv.TierDevice, prompt, 0, 2)
	store(t, x, both, kv.TierHost, prompt, 2, 6)
	route(t, a, both, prompt[:4])
	route(t, a, guessed, prompt[:5])
	route(t, a, gone, prompt) // is not a worker of x
	merged := func() map[kv.Worker]index.Hits {
		var m, guess index.Matches
		x.Match(&m, prompt, index.Continuation)
		if err := a.Match(&guess, prompt); err != nil {
			t.Fatal(err)
		}
		approx.MergeMax(&m, &guess)
		return workerHits(t, &m)
	}
	want := map[kv.Worker]index.Hits{told: device(3), both: {4, 2}, guessed: device(5)}
	if diff := cmp.Diff(want, merged()); diff != "" {
		t.Errorf("with guesses (-want +got):\n%s", diff)
	}
	now = now.Add(time.Hour)
	if diff := cmp.Diff(map[kv.Worker]index.Hits{told: device(3), both: {2, 4}}, merged()); diff != "" {
		t.Errorf("an hour later (-want +got):\n%s", diff)
	}
}

// TestMergeMaxModel: merging equals the larger of the two for every worker,
// whatever the two lists of workers are, where a lower tier keeps what reaches beyond
// the device, and leaves the other answer alone.
func TestMergeMaxModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) (index.Matches, map[kv.Worker]index.Hits) {
			m := index.Matches{Members: &index.Members{}}
			by := make(map[kv.Worker]index.Hits)
			for id := range 6 {
				if !rapid.Bool().Draw(t, label+" lists") {
					continue
				}
				w := worker(id+1, 0)
				m.Members.List = append(m.Members.List, index.Member{Worker: w})
				h := index.Hits{uint32(rapid.IntRange(0, 6).Draw(t, label+" device"))}
				for tier := kv.TierHost; int(tier) < len(h); tier++ {
					h[tier] = uint32(rapid.IntRange(0, 2).Draw(t, label+" "+tier.String()))
				}
				if h.Total() > 0 {
					m.Hits = append(m.Hits, index.Hit{Member: int32(len(m.Members.List) - 1), Hits: h})
					by[w] = h
				}
			}
			return m, by
		}
		dst, want := draw("dst")
		other, guesses := draw("other")
		if rapid.Bool().Draw(t, "same list") {
			other.Members = dst.Members
			other.Hits = slices.DeleteFunc(other.Hits, func(h index.Hit) bool { return int(h.Member) >= len(dst.Members.List) })
			guesses = workerHits(t, &other)
		}
		before := slices.Clone(other.Hits)
		for w, g := range guesses {
			if _, ok := dst.Members.Find(w); ok && g[kv.TierDevice] > 0 {
				// The ends of the tiers in the prompt, none of them before the device's.
				h, end, device := want[w], uint32(0), g[kv.TierDevice]
				for tier := range h {
					end += h[tier]
					h[tier] = max(end, device)
				}
				for tier := len(h) - 1; tier > 0; tier-- {
					h[tier] -= h[tier-1]
				}
				want[w] = h
			}
		}
		approx.MergeMax(&dst, &other)
		if diff := cmp.Diff(want, workerHits(t, &dst), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("merged (-want +got):\n%s", diff)
		}
		if !slices.Equal(before, other.Hits) {
			t.Fatalf("the other answer is now %v, was %v", other.Hits, before)
		}
	})
}

// TestApproxConcurrentUse: decisions, questions, ticks and removals from many
// goroutines; a worker that nobody removes and that is routed to again and again
// is never seen with less than a whole prompt.
func TestApproxConcurrentUse(t *testing.T) {
	a := newApprox(t, approx.Options{TTL: time.Hour, MaxBlocks: 1 << 16, PruneRatio: 0.8})
	steady, prompt := worker(1, 0), series(1, 300)
	route(t, a, steady, prompt)
	var all sync.WaitGroup
	for g := range 3 {
		all.Go(func() {
			var m index.Matches
			for i := range 200 {
				w := worker(2+g, 0)
				if err := errors.Join(a.SetMember(w, 0, true), a.Record(w, prompt[:100], kv.AppendSequence(nil, prompt[:100]))); err != nil {
					t.Error(err)
				}
				if i%20 == 0 {
					if err := a.RemoveWorker(w); err != nil {
						t.Error(err)
					}
				}
				if err := a.Match(&m, prompt); err != nil {
					t.Error(err)
				}
				if got := workerHits(t, &m)[steady]; got != device(300) {
					t.Errorf("worker 1 has %v, want 300 device blocks", got)
				}
				a.Tick()
				a.Stats()
			}
		})
	}
	all.Wait()
}

// BenchmarkApproxRecord: prompts of 750 blocks, four of five of them shared with
// others, of 8 workers, within the bound of a million blocks.
func BenchmarkApproxRecord(b *testing.B) {
	a := newApprox(b, approx.Options{TTL: 2 * time.Minute, MaxBlocks: 1 << 20, PruneRatio: 0.8})
	var prompts [][]kv.LocalHash
	var sequences [][]kv.SequenceHash
	for n := range 2000 {
		prompts = append(prompts, slices.Concat(series(1, 600), series(10_000*(n+1), 150)))
		sequences = append(sequences, kv.AppendSequence(nil, prompts[n]))
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := a.Record(worker(1+n%8, 0), prompts[n%2000], sequences[n%2000]); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(750*n), "ns/block")
}

// TestPruningIsSpreadOverDecisions: a decision that exceeds the limit drops little more
// than it brings, a tick drops the rest.
func TestPruningIsSpreadOverDecisions(t *testing.T) {
	const limit, each = 100_000, 100
	a := newApprox(t, approx.Options{TTL: time.Hour, MaxBlocks: limit, PruneRatio: 0.5})
	w := kv.Worker{ID: 1}
	if err := a.SetMember(w, 0, true); err != nil {
		t.Fatal(err)
	}
	before, most := 0, 0
	for n := 0; before == 0 || n < limit/each+5; n++ {
		locals := make([]kv.LocalHash, each)
		for i := range locals {
			locals[i] = kv.LocalHash(n*each + i + 1)
		}
		if err := a.Record(w, locals, kv.AppendSequence(nil, locals)); err != nil {
			t.Fatal(err)
		}
		s := a.Stats()
		if s.Blocks > limit {
			t.Fatalf("%d blocks after decision %d", s.Blocks, n)
		}
		most, before = max(most, int(s.Pruned)-before), int(s.Pruned)
	}
	if most > 4*each+256 {
		t.Errorf("%d blocks were pruned by one decision, of %d", most, before)
	}
	if a.Tick(); a.Stats().Blocks != limit/2 {
		t.Errorf("%d blocks after a tick, want %d", a.Stats().Blocks, limit/2)
	}
}

// TestGuessedBlocksAreHeldWhileTheyAre: by the worker that a request went to.
func TestGuessedBlocksAreHeldWhileTheyAre(t *testing.T) {
	now := time.Unix(1, 0)
	a, err := approx.New(approx.Options{TTL: time.Minute, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	w := worker(1, 0)
	if err := a.SetMember(w, 0, true); err != nil {
		t.Fatal(err)
	}
	prompt := series(1, 4)
	if err := a.Record(w, prompt, kv.AppendSequence(nil, prompt)); err != nil {
		t.Fatal(err)
	}
	if got := a.Held(a.Members(), 0); got != 4 {
		t.Errorf("%d blocks, want 4", got)
	}
	now = now.Add(2 * time.Minute)
	a.Tick()
	if got := a.Held(a.Members(), 0); got != 0 {
		t.Errorf("%d blocks after their time", got)
	}
}
