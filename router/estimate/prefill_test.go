package estimate

import (
	"fmt"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// wantRate checks the prefill rate of worker 1, to a hundredth.
func (b *bench) wantRate(perSecond float64) {
	b.t.Helper()
	if m := b.Measures()[0].PrefillTokens; m.Source != SourceMeasured || m.PerSecond < perSecond*0.99 || m.PerSecond > perSecond*1.01 {
		b.t.Errorf("rate %+v, want %v", m, perSecond)
	}
}

// TestQueuedPrefillsAreNotSlow: requests that arrive together wait for one another,
// and the rate is that of computing all the same; so it is when first tokens come in
// pairs.
func TestQueuedPrefillsAreNotSlow(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	for i := range 20 {
		b.book(fmt.Sprint(i), 1, 1000)
	}
	for i := range 20 {
		if i%2 == 0 {
			b.pass(200 * time.Millisecond)
		}
		b.PrefillDone(fmt.Sprint(i))
	}
	b.wantRate(10_000)
	if m := b.Measures()[0]; m.Pending != 0 || m.PendingTokens != 0 {
		t.Errorf("%d pending with %d tokens", m.Pending, m.PendingTokens)
	}
}

// TestLoadingIsNotComputing: the time that a request waits for its blocks is not taken
// for slow computing, nor for fast when others compute meanwhile.
func TestLoadingIsNotComputing(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.reportCopies(1, 3, 1<<12)
	b.reportDisk(9, 3, 100, 0)
	for i := range 10 {
		id := fmt.Sprint(i)
		b.Booked(&Booking{ID: id, Worker: workerID(1), Tokens: 1000 + 50*testBlock, BlockSize: testBlock, Hits: index.Hits{kv.TierDisk: 50}})
		if i >= 5 {
			b.book("beside", 1, 1000)
			b.pass(100 * time.Millisecond)
			b.PrefillDone("beside")
			b.pass(400 * time.Millisecond)
		} else {
			b.pass(500 * time.Millisecond)
		}
		b.pass(100 * time.Millisecond)
		b.PrefillDone(id)
		b.pass(time.Second)
	}
	b.wantRate(10_000)
}

// TestOutliersDoNotCount: a stall now and then changes nothing, a worker that has
// become slower is believed.
func TestOutliersDoNotCount(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.serve(1, 10, 10_000)
	b.serve(1, 2, 50)
	b.wantRate(10_000)
	if s := b.Stats(); s.Samples != 12 || s.Outliers != 2 {
		t.Errorf("%+v", s)
	}
	b.serve(1, 12, 1_000)
	b.wantRate(1_000)
}

// TestSmallPromptsCountWhileThereIsNothingElse: what every request costs makes them
// look slow.
func TestSmallPromptsCountWhileThereIsNothingElse(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	small := func(n int) {
		for range n {
			b.book("s", 1, 50)
			b.pass(50 * time.Millisecond)
			b.PrefillDone("s")
			b.pass(time.Second)
		}
	}
	small(20)
	b.wantRate(1_000)
	b.serve(1, 8, 10_000)
	b.wantRate(10_000)
	small(200)
	b.wantRate(10_000)
}

// TestWhatEndedEarlyTeachesNothing: a request that was given up before its first
// token, and unknown, doubled and surplus ones.
func TestWhatEndedEarlyTeachesNothing(t *testing.T) {
	b := newBench(t, Options{MaxRequests: 2})
	b.SetWorker(workerID(1), 0, "m")
	b.serve(1, 3, 10_000)
	for range 5 {
		b.book("a", 1, 100_000)
		b.book("a", 1, 1000)
		b.book("b", 2, 1000)
		b.pass(time.Second)
		b.Dropped("a")
		b.Dropped("a")
		b.PrefillDone("a")
	}
	b.serve(1, 1, 10_000)
	b.wantRate(10_000)
	b.book("x", 1, 1000)
	b.book("y", 1, 1000)
	b.book("z", 1, 1000)
	if s := b.Stats(); s.Abandoned != 5 || s.Unfollowed != 11 || s.Requests != 2 || s.Samples != 4 {
		t.Errorf("%+v", s)
	}
}

// TestARequestOfWhichNothingIsHeardIsForgotten: by the next one on its worker, or by one
// on any when there is no room.
func TestARequestOfWhichNothingIsHeardIsForgotten(t *testing.T) {
	b := newBench(t, Options{MaxRequests: 2})
	b.SetWorker(workerID(1), 0, "m")
	b.SetWorker(workerID(2), 0, "m")
	b.book("a", 1, 1000)
	b.pass(maxSilence - time.Second)
	b.book("b", 1, 1000)
	b.pass(2 * time.Second)
	b.book("c", 1, 1000)
	if s := b.Stats(); s.Requests != 2 || s.Expired != 1 || s.Unfollowed != 0 {
		t.Errorf("%+v", s)
	}
	b.pass(maxSilence)
	b.pass(time.Second)
	b.book("d", 2, 1000)
	if s := b.Stats(); s.Requests != 1 || s.Expired != 3 || s.Unfollowed != 0 {
		t.Errorf("%+v", s)
	}
	b.Dropped("a")
	if s := b.Stats(); s.Abandoned != 0 {
		t.Errorf("%+v", s)
	}
}

// TestWhatIsComputedIsNotAhead: half of a long prompt is done after half of its time,
// and never more than all of it.
func TestWhatIsComputedIsNotAhead(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.serve(1, 3, 10_000)
	b.book("long", 1, 10_000)
	b.book("next", 1, 10_000)
	b.want(2100, 1, 1000, index.Hits{}, 0)
	b.pass(500 * time.Millisecond)
	b.want(1600, 1, 1000, index.Hits{}, 0)
	b.pass(5 * time.Second)
	b.want(1100, 1, 1000, index.Hits{}, 0)
}

// TestCachedTrafficIsNotSlowComputing: prompts that are cached but for a few tokens take
// as long as a step of the engine does. However they overlap, the rate stays what it
// is, and what a request costs besides its tokens is learned and waited for.
func TestCachedTrafficIsNotSlowComputing(t *testing.T) {
	for name, overlap := range map[string]int{"one after the other": 0, "two at a time": 1, "many at a time": 20} {
		b := newBench(t, Options{})
		b.SetWorker(workerID(1), 0, "m")
		b.serve(1, 16, 10_000)
		b.want(1000, 1, 10_000, index.Hits{}, 0)
		const step = 15 * time.Millisecond
		for i := range 2000 {
			b.Booked(&Booking{ID: fmt.Sprint(i), Worker: workerID(1), Tokens: 1617, BlockSize: testBlock, Hits: index.Hits{kv.TierDevice: 100}})
			if i >= overlap {
				b.pass(step + 17*time.Second/10_000)
				b.PrefillDone(fmt.Sprint(i - overlap))
			}
		}
		b.wantRate(10_000)
		m := b.Measures()[0]
		if m.RequestSeconds < 0.9*step.Seconds() || m.RequestSeconds > 1.1*step.Seconds() {
			t.Errorf("%s: a request costs %v s besides its tokens, want %v", name, m.RequestSeconds, step)
		}
		ahead := float64(overlap) * 16.7
		got, _ := b.ask(1, 10_000, index.Hits{}, 0)
		if want := 1015 + ahead; got < want*0.98 || got > want*1.02 {
			t.Errorf("%s: %v ms for 10,000 tokens behind %d requests, want %v", name, got, overlap, want)
		}
		b.SetWorker(workerID(2), 0, "m")
		b.pass(2 * time.Second)
		if got, _ := b.ask(2, 10_000, index.Hits{}, 0); got < 1010 || got > 1020 {
			t.Errorf("%s: %v ms on a worker that nothing is known of, want 1015", name, got)
		}
	}
}

// TestTheRateIsWithoutWhatRequestsCost: once that is known, it is taken off the time of
// large prompts, but never more than half of it.
func TestTheRateIsWithoutWhatRequestsCost(t *testing.T) {
	for each, want := range map[time.Duration]float64{15 * time.Millisecond: 10_000, time.Minute: 1000 / (0.115 / 2)} {
		b := newBench(t, Options{})
		b.SetWorker(workerID(1), 0, "m")
		serve := func(tokens int, took time.Duration) {
			for range 16 {
				b.book("s", 1, tokens)
				b.pass(took)
				b.PrefillDone("s")
				b.pass(time.Second)
			}
		}
		serve(1000, 115*time.Millisecond)
		b.wantRate(1000 / 0.115)
		serve(10, each+time.Millisecond)
		serve(1000, 115*time.Millisecond)
		b.wantRate(want)
	}
}

// TestSmallPromptsBesideALargeOne: in an engine that computes them at the same time they
// do not end sooner for being cheap. Together with the large one they have taken what
// its tokens take.
func TestSmallPromptsBesideALargeOne(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.serve(1, 5, 10_000)
	for range 10 {
		b.book("large", 1, 9_600)
		for i := range 40 {
			b.book(fmt.Sprint(i), 1, 10)
			b.pass(25 * time.Millisecond)
			b.PrefillDone(fmt.Sprint(i))
		}
		b.PrefillDone("large")
		b.pass(time.Second)
	}
	b.wantRate(10_000)
	if m := b.Measures()[0]; m.RequestSeconds != 0 {
		t.Errorf("a request costs %v s, which nothing has shown", m.RequestSeconds)
	}
}

// TestTokensFromElsewhereTeachNothing: what is fetched from the external tier is not
// computed, and nobody knows how much was.
func TestTokensFromElsewhereTeachNothing(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.serve(1, 3, 10_000)
	for i := range 20 {
		b.Booked(&Booking{ID: fmt.Sprint(i), Worker: workerID(1), Tokens: 10_000, BlockSize: testBlock, Hits: index.Hits{kv.TierExternal: 600}})
		b.want(1000+1000, 1, 10_000, index.Hits{}, 0)
		b.pass(50 * time.Millisecond)
		b.PrefillDone(fmt.Sprint(i))
	}
	b.wantRate(10_000)
	if s := b.Stats(); s.Samples != 3 || s.Requests != 0 {
		t.Errorf("%+v", s)
	}
}
