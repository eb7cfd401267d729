package estimate

import (
	"math"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestTheEstimateIsTheSumOfItsParts: queue, copies, disk and its queue, and what is
// left to compute, each by the rate that was measured.
func TestTheEstimateIsTheSumOfItsParts(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.serve(1, 5, 10_000)
	b.reportCopies(1, 3, 10)    // 10 MiB/ms
	b.reportDisk(9, 3, 1000, 0) // 1000 MiB/s

	b.want(100, 1, 1000, index.Hits{}, 0)
	b.want(100+50, 1, 1000, index.Hits{}, 500)
	b.want(100-10*1.6, 1, 1000, index.Hits{kv.TierDevice: 10}, 0)
	b.want(100-10*1.6+10*0.1, 1, 1000, index.Hits{kv.TierHost: 10}, 0)
	b.want(100-30*1.6+30*0.1+20*1, 1, 1000, index.Hits{kv.TierHost: 10, kv.TierDisk: 20}, 0)
	b.reportDisk(9, 1, 1000, 40)
	b.want(100-20*1.6+20*0.1+60*1, 1, 1000, index.Hits{kv.TierDisk: 20}, 0)
	b.pass(30 * time.Millisecond) // the disk has read 30 of the 40
	b.want(100-20*1.6+20*0.1+30*1, 1, 1000, index.Hits{kv.TierDisk: 20}, 0)
	b.want(0.1, 1, 62*testBlock, index.Hits{kv.TierDevice: 62}, 0) // the last token is computed in any case
}

// TestRequestsOfThisSecondQueueAtTheDisk: what was sent since the last report waits
// there as well.
func TestRequestsOfThisSecondQueueAtTheDisk(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.SetWorker(workerID(2), 9, "m")
	b.serve(1, 3, 10_000)
	b.reportCopies(1, 3, 1<<12) // next to no time
	b.reportDisk(9, 3, 1000, 0)
	hits := index.Hits{kv.TierDisk: 62}
	b.want(62+0.8, 2, 1000, hits, 0)
	b.Booked(&Booking{ID: "a", Worker: workerID(1), Tokens: 1000, BlockSize: testBlock, Hits: hits})
	b.want(62+62+0.8, 2, 1000, hits, 0)
	b.pass(time.Second)
	b.want(62+0.8, 2, 1000, hits, 0)
}

// TestWhatIsMissingIsNamed: there is no estimate without every measure that it needs,
// and none is needed that it does not.
func TestWhatIsMissingIsNamed(t *testing.T) {
	b := newBench(t, Options{MinSamples: 2})
	b.wantMissing("worker 1/0 is not known", 1, index.Hits{})
	b.SetWorker(workerID(1), 9, "m")
	b.serve(1, 1, 10_000)
	b.wantMissing("no prefill rate of worker 1/0 yet", 1, index.Hits{})
	b.serve(1, 1, 10_000)
	b.pass(2 * time.Second)
	b.want(100, 1, 1000, index.Hits{}, 0)
	host, disk := index.Hits{kv.TierHost: 1}, index.Hits{kv.TierDisk: 1}
	b.wantMissing("no size of a block of worker 1/0 yet", 1, host)
	b.reportDisk(9, 1, 0, 0)
	b.pass(2 * time.Second)
	b.wantMissing("no copy rate of worker 1/0 yet", 1, host)
	b.reportCopies(1, 2, 10)
	b.want(98.5, 1, 1000, host, 0)
	b.wantMissing("no disk rate of worker 1/0 yet", 1, disk)
	b.reportDisk(9, 2, 1000, 0)
	b.want(99.5, 1, 1000, disk, 0)
	if s := b.Stats(); s.Missing != 5 {
		t.Errorf("%d missing, want 5", s.Missing)
	}
}

// TestTheModelsMedianStandsIn: for a worker that has none of its own or whose own is
// too old; only that of workers with the same model.
func TestTheModelsMedianStandsIn(t *testing.T) {
	b := newBench(t, Options{MaxAge: time.Hour})
	for w := range uint64(5) {
		b.SetWorker(workerID(w), w, "m")
	}
	b.SetWorker(workerID(7), 7, "other")
	b.serve(0, 3, 10_000)
	b.serve(1, 3, 20_000)
	b.serve(2, 3, 1_000)
	b.want(100, 4, 1000, index.Hits{}, 0)
	b.wantMissing("no prefill rate of worker 7/0 yet", 7, index.Hits{})
	if m := b.Measures()[4].PrefillTokens; m.Source != SourceModel || m.From != 3 || m.Samples != 0 {
		t.Errorf("measure of worker 4: %+v", m)
	}
	if m := b.Measures()[2].PrefillTokens; m.Source != SourceMeasured || m.Samples != 3 {
		t.Errorf("measure of worker 2: %+v", m)
	}

	b.pass(time.Hour - time.Minute)
	b.serve(0, 3, 10_000)
	b.pass(time.Minute)
	b.want(100, 2, 1000, index.Hits{}, 0)
	b.pass(time.Hour + time.Minute)
	b.wantMissing("no prefill rate of worker 2/0 yet", 2, index.Hits{})
	if m := b.Measures()[2].PrefillTokens; m.Source != SourceNone || m.PerSecond != 0 {
		t.Errorf("measure of worker 2 when nobody has one: %+v", m)
	}
}

// TestWhatGoesIsForgotten: a worker, with its requests, and a pool with its last
// member; and one that comes back begins anew.
func TestWhatGoesIsForgotten(t *testing.T) {
	b := newBench(t, Options{MaxWorkers: 2})
	b.SetWorker(workerID(1), 9, "m")
	b.SetWorker(workerID(2), 9, "m")
	b.SetWorker(workerID(3), 9, "m")
	b.serve(1, 3, 10_000)
	b.want(100, 1, 1000, index.Hits{}, 0)
	b.book("a", 1, 1000)
	if s := b.Stats(); s.Workers != 2 || s.Pools != 1 || s.Requests != 1 || s.RefusedWorkers != 1 {
		t.Errorf("before: %+v", s)
	}
	b.RemoveWorker(workerID(1))
	b.RemoveWorker(workerID(1))
	b.PrefillDone("a")
	b.wantMissing("worker 1/0 is not known", 1, index.Hits{})
	b.SetWorker(workerID(1), 0, "m")
	b.pass(2 * time.Second)
	b.wantMissing("no prefill rate of worker 1/0 yet", 1, index.Hits{})
	b.RemoveWorker(workerID(2))
	b.reportDisk(9, 1, 1000, 0)
	b.reportCopies(2, 1, 10)
	if s := b.Stats(); s.Workers != 1 || s.Pools != 0 || s.Requests != 0 || s.Abandoned != 1 || s.Unknown != 2 {
		t.Errorf("after: %+v", s)
	}
	b.RemoveWorker(workerID(1))
	if len(b.models) != 0 || len(b.pools) != 0 {
		t.Errorf("%d models, %d pools are left", len(b.models), len(b.pools))
	}
}

// TestAWorkerMayMove: to another pool and another model; what it does itself was
// measured, and stays.
func TestAWorkerMayMove(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.serve(1, 3, 10_000)
	b.SetWorker(workerID(1), 8, "n")
	b.want(100, 1, 1000, index.Hits{}, 0)
	m := b.Measures()
	if len(m) != 1 || m[0].Pool != 8 || m[0].Model != "n" || len(b.pools) != 1 || len(b.models) != 1 {
		t.Errorf("%+v, %d pools, %d models", m, len(b.pools), len(b.models))
	}
}

// TestRequestsOfOthersAreAhead: an engine that has more waiting than this router sent
// has them from somebody else; a report is believed for three seconds.
func TestRequestsOfOthersAreAhead(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.serve(1, 3, 10_000)
	b.book("a", 1, 1000)
	b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{Waiting: 3}})
	b.want(100+100+200, 1, 1000, index.Hits{}, 0)
	b.pass(4 * time.Second)
	b.want(100, 1, 1000, index.Hits{}, 0)
}

// TestAbsurdReportsGiveNumbers: whatever an agent says, estimates are finite, and no
// request is waited for longer than it is followed.
func TestAbsurdReportsGiveNumbers(t *testing.T) {
	for _, c := range [][2]uint64{{math.MaxUint64, 1}, {1, math.MaxUint64}, {math.MaxUint64, math.MaxUint64}} {
		b := newBench(t, Options{MinSamples: 1})
		b.SetWorker(workerID(1), 9, "m")
		b.serve(1, 3, 10_000)
		b.reportCopies(1, 1, 10)
		b.reportDisk(9, 1, 1000, 0)
		b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{
			Waiting: math.MaxUint64, CopyBytes: c[0], CopyMicros: c[1],
		}})
		b.Report(&kvevent.LoadReport{Owner: kv.PoolOwner(9), Pool: kvevent.PoolLoad{
			BlockBytes: math.MaxUint64, DiskReadBytes: c[0], DiskReadMicros: c[1], ReadQueue: math.MaxUint64,
		}})
		hits := index.Hits{kv.TierHost: math.MaxUint32, kv.TierDisk: math.MaxUint32}
		if ms, why := b.ask(1, 1000, hits, math.MaxInt64); why != "" || !(ms >= 0 && ms <= math.MaxFloat64) {
			t.Errorf("%v: %v ms, %q", c, ms, why)
		}
		b.Booked(&Booking{ID: "a", Worker: workerID(1), Tokens: 1000, BlockSize: testBlock, Hits: hits})
		if d := b.requests["a"].blocksReady.Sub(b.now); d < 0 || d > maxSilence {
			t.Errorf("%v: ready after %v", c, d)
		}
		if s := b.Stats(); s.Implausible != 2 || s.Samples != 5 {
			t.Errorf("%v: %+v", c, s)
		}
	}
}
