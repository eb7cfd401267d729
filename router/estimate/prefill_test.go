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
	b.reportCopies(1, 3, 1<<20)
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
	b.pass(maxPrefill - time.Second)
	b.book("b", 1, 1000)
	b.pass(2 * time.Second)
	b.book("c", 1, 1000)
	if s := b.Stats(); s.Requests != 2 || s.Expired != 1 || s.Unfollowed != 0 {
		t.Errorf("%+v", s)
	}
	b.pass(maxPrefill)
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
	b.want(2100, 1, 1000, index.Hits{}, 20_000)
	b.pass(500 * time.Millisecond)
	b.want(1600, 1, 1000, index.Hits{}, 20_000)
	b.pass(5 * time.Second)
	b.want(1100, 1, 1000, index.Hits{}, 20_000)
}
