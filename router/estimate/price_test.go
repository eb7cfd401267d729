package estimate

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// TestPromptsAreLearned: what every prompt takes and what a token takes are told apart, and cached
// tokens are not computed.
func TestPromptsAreLearned(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.wantMissing("no prefill time of worker 1/0 yet", 1, index.Hits{})
	b.learn(1, 16, 1)
	b.want(105, 1, 1000, index.Hits{}, 0)
	b.want(305, 1, 3000, index.Hits{}, 0)
	b.want(105-10*1.6, 1, 1000, index.Hits{kv.TierDevice: 10}, 0)
	b.want(105+50, 1, 1000, index.Hits{}, 500)
}

// TestLowerTiersAreLoadedOrComputed, whichever is less: a slow disk is worth nothing, and one that
// nobody has measured is worth nothing either.
func TestLowerTiersAreLoadedOrComputed(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.learn(1, 16, 1)
	host, disk := index.Hits{kv.TierHost: 60}, index.Hits{kv.TierDisk: 60}
	b.want(105, 1, 1000, disk, 0)
	b.reportCopies(1, 3, 10)
	b.reportDisk(9, 3, 10_000, 0)
	b.want(6+9, 1, 1000, host, 0)
	b.want(6+6+9, 1, 1000, disk, 0)
	b.reportDisk(9, 16, 100, 0)
	b.want(105, 1, 1000, disk, 0)
}

// TestDecodingIsLearned: what a step takes, and what each running request adds, by the blocks of
// answers alone.
func TestDecodingIsLearned(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.learn(1, 16, 1)
	for _, n := range []int{1, 8, 32, 16, 4} {
		for i := range n {
			b.compute(fmt.Sprint(i), 1, 300, 1)
		}
		for range 8 { // blocks of 16 tokens
			b.pass(time.Duration(testBlock * (perStep + perRunning*float64(n)) * float64(time.Second)))
			for i := range n {
				b.OutputBlock(fmt.Sprint(i))
			}
		}
		for i := range n {
			b.Dropped(fmt.Sprint(i))
		}
	}
	p, why := b.price(1, 1000, index.Hits{}, 0)
	// The mean answer has 8.5 blocks.
	if want := 8.5 * testBlock * (perStep + perRunning) * 1e3; why != "" || math.Abs(p.Decode-want) > want/5 { // contexts grew with their number, so that either may count
		t.Errorf("%+v, %q; want an answer of %v ms", p, why, want)
	}
	if m := b.Measures()[0]; math.Abs(m.StepSeconds-perStep) > perStep/10 {
		t.Errorf("%+v", m)
	}
}

// TestBlocksReportedTogetherAreNoSteps: a server that counts several tokens at once reports blocks
// microseconds apart. They say nothing about a step.
func TestBlocksReportedTogetherAreNoSteps(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.learn(1, 16, 1)
	for i := range 8 {
		id := fmt.Sprint(i)
		b.compute(id, 1, 300, 1)
		for range 8 {
			b.pass(time.Duration(testBlock * (perStep + perRunning) * float64(time.Second)))
			for range 4 {
				b.pass(time.Microsecond)
				b.OutputBlock(id)
			}
		}
		b.Dropped(id)
	}
	if m := b.Measures()[0]; m.StepSeconds+m.RunningSeconds < (perStep+perRunning)/2 {
		t.Errorf("%+v, want a step of %v s", m, perStep+perRunning)
	}
}

// TestRunningRequestsMakeAWorkerDear: what a prompt takes, each of them waits for.
func TestRunningRequestsMakeAWorkerDear(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.SetWorker(workerID(2), 9, "m")
	b.learn(1, 16, 1)
	b.learn(2, 16, 1)
	for i := range 10 {
		b.compute(fmt.Sprint(i), 1, 1000, 1)
	}
	busy, _ := b.price(1, 1000, index.Hits{}, 0)
	idle, _ := b.price(2, 1000, index.Hits{}, 0)
	if more := busy.Imposed - idle.Imposed; more < 10*100 || more > 10*125 {
		t.Errorf("%v ms imposed on ten requests by a prompt of 105 ms, %+v and %+v", more, busy, idle)
	}
}

// TestWhatIsComputedIsNotAhead: half of a long prompt is done after half of its time,
// and never more than all of it.
func TestWhatIsComputedIsNotAhead(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.learn(1, 16, 1)
	b.book("a", 1, 10_000)
	b.want(1005+105, 1, 1000, index.Hits{}, 0)
	b.pass(500 * time.Millisecond)
	b.want(505+105, 1, 1000, index.Hits{}, 0)
	b.pass(3 * time.Second)
	b.want(105, 1, 1000, index.Hits{}, 0)
}

// TestAFullDeviceIsWaitedFor: a request that does not fit waits until running ones end.
func TestAFullDeviceIsWaitedFor(t *testing.T) {
	b := newBench(t, Options{})
	terms := Terms{Step: 0.01}
	s := Situation{Left: 100}
	in := selection(1, 1600, index.Hits{}, 0)
	in.Workers = append(in.Workers, make([]schedule.WorkerConfig, len(few.List))...)
	in.Workers[1].TotalBlocks = 1000
	in.Loads.ActiveBlocks[1] = 500
	if wait := memoryWait(&terms, &s, in, 1, 1600); wait != 0 {
		b.t.Errorf("%v s for room that is there", wait)
	}
	in.Loads.ActiveBlocks[1] = 1000
	if wait := memoryWait(&terms, &s, in, 1, 1600); math.Abs(wait-0.1) > 1e-9 { // a tenth of the blocks
		b.t.Errorf("%v s, want a tenth of the second that running requests take", wait)
	}
}

// TestTheModelStandsIn for a worker that has shown nothing; a slow worker is told from a fast one.
func TestTheModelStandsIn(t *testing.T) {
	b := newBench(t, Options{})
	for w := range uint64(5) {
		b.SetWorker(workerID(w), w, "m")
	}
	b.SetWorker(workerID(7), 7, "other")
	for range 4 {
		for w, speed := range []float64{1, 1, 0.2, 1} {
			b.learn(uint64(w), 4, speed)
		}
	}
	slow, _ := b.ask(2, 1000, index.Hits{}, 0)
	fast, _ := b.ask(0, 1000, index.Hits{}, 0)
	unknown, why := b.ask(4, 1000, index.Hits{}, 0)
	if slow < 2.5*fast || why != "" || unknown > fast*1.3 {
		t.Errorf("slow %v, fast %v, unknown %v ms, %q", slow, fast, unknown, why)
	}
	b.wantMissing("no prefill time of worker 7/0 yet", 7, index.Hits{})
	if m := b.Measures(); m[4].PrefillTokens.Source != SourceModel || m[2].PrefillTokens.Source != SourceMeasured {
		t.Errorf("%+v", m)
	}
}

// TestASlowStarterIsTriedAgain: a worker whose first requests took long is not left alone for ever. Its
// price falls back to that of the others without a single request, and requests that explore are few.
func TestASlowStarterIsTriedAgain(t *testing.T) {
	b := newBench(t, Options{})
	for w := range uint64(3) {
		b.SetWorker(workerID(w), w, "m")
	}
	for range 4 {
		b.learn(0, 4, 1)
		b.learn(1, 4, 1)
		b.learn(2, 1, 0.05)
	}
	begin, _ := b.ask(2, 1000, index.Hits{}, 0)
	sooner := time.Duration(0)
	for b.pass(time.Second); sooner < 2*time.Minute; b.pass(time.Second) {
		sooner += time.Second
		b.learn(0, 1, 1)
		b.learn(1, 1, 1)
		other, _ := b.ask(0, 1000, index.Hits{}, 0)
		if now, _ := b.ask(2, 1000, index.Hits{}, 0); now < other {
			break
		}
	}
	if begin < 400 || sooner >= 2*time.Minute {
		t.Errorf("%v ms at first; not cheaper than the others after %v", begin, sooner)
	}
}

// TestExplorationIsBounded: of a worker whose price is the optimistic one, one request is in flight,
// and further ones pay the unproven price.
func TestExplorationIsBounded(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 1, "m")
	b.SetWorker(workerID(2), 2, "m")
	b.learn(1, 16, 1)
	first, _ := b.ask(2, 1000, index.Hits{}, 0)
	b.book("explores", 2, 1000)
	second, _ := b.ask(2, 1000, index.Hits{}, 0)
	if s := b.Stats(); first > 60 || second < 250 || s.Explored != 1 {
		t.Errorf("%v ms and then %v, %+v", first, second, s)
	}
	b.Dropped("explores")
	if again, _ := b.ask(2, 1000, index.Hits{}, 0); again > second {
		t.Errorf("%v ms after the one in flight has gone", again)
	}
}

// TestPoisonedSamplesDoNotCount: a stall now and then changes little, whatever it took.
func TestPoisonedSamplesDoNotCount(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.learn(1, 40, 1)
	for range 3 {
		b.book("stalls", 1, 1000)
		b.pass(30 * time.Second)
		b.PrefillDone("stalls")
		b.Dropped("stalls")
		b.learn(1, 8, 1)
	}
	if ms, why := b.ask(1, 1000, index.Hits{}, 0); why != "" || ms > 140 {
		t.Errorf("%v ms, %q; want about 105", ms, why)
	}
	if s := b.Stats(); s.Outliers != 3 {
		t.Errorf("%+v", s)
	}
}

// TestWhatEndedEarlyTeachesNothing, nor what an unknown part of was fetched, nor what waited for room
// on the device.
func TestWhatEndedEarlyTeachesNothing(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.book("a", 1, 1000)
	b.pass(time.Minute)
	b.Dropped("a")
	b.Booked(&Booking{ID: "b", Worker: workerID(1), Tokens: 1000, BlockSize: testBlock, Hits: index.Hits{kv.TierExternal: 5}})
	b.pass(time.Second)
	b.PrefillDone("b")
	b.Dropped("b")
	b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{DeviceBlocksTotal: 100, DeviceBlocksUsed: 99}})
	b.learn(1, 3, 1)
	if s := b.Stats(); s.Samples != 0 || s.Abandoned != 1 {
		t.Errorf("%+v", s)
	}
}

// TestRequestsOfOthersCount: an engine that has more requests than this router sent has them from
// somebody else; a report is believed for three seconds.
func TestRequestsOfOthersCount(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.learn(1, 16, 1)
	b.pass(time.Second)
	b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{Waiting: 2, Running: 10}})
	crowded, _ := b.price(1, 1000, index.Hits{}, 0)
	b.pass(4 * time.Second)
	alone, _ := b.price(1, 1000, index.Hits{}, 0)
	if crowded.Wait <= alone.Wait || crowded.Imposed < alone.Imposed+900 {
		t.Errorf("%+v, and alone %+v", crowded, alone)
	}
}

// TestBookedRequestsOfOthersCountOnce: the engine reports the requests that other routers booked, and the
// account has them too.
func TestBookedRequestsOfOthersCountOnce(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.learn(1, 16, 1)
	b.pass(time.Second)
	price := func() (p [1]price.Price) {
		in := selection(1, 1000, index.Hits{}, 2000)
		in.Loads.Requests[1] = 12
		b.Prices(in, p[:])
		return p
	}
	booked := price()[0]
	b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{Waiting: 2, Running: 10}})
	reported := price()[0]
	if reported.Wait > booked.Wait*1.05 || reported.Imposed > booked.Imposed*1.05 || booked.Wait == 0 || booked.Imposed == 0 {
		t.Errorf("%+v, and with the report %+v", booked, reported)
	}
	for range 2 { // one alone may be wrong
		b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{Waiting: 20, Running: 100}})
	}
	if more := price()[0]; more.Wait <= reported.Wait || more.Imposed <= reported.Imposed {
		t.Errorf("%+v, and with more requests %+v", reported, more)
	}
}

// TestWhatGoesIsForgotten: a worker, with its requests, and a pool with its last
// member; and one that comes back begins anew.
func TestWhatGoesIsForgotten(t *testing.T) {
	b := newBench(t, Options{MaxWorkers: 2})
	for w := range uint64(3) {
		b.SetWorker(workerID(w+1), 9, "m")
	}
	b.learn(1, 8, 1)
	b.book("a", 1, 1000)
	b.compute("b", 1, 1000, 1)
	if s := b.Stats(); s.Workers != 2 || s.Pools != 1 || s.Requests != 2 || s.RefusedWorkers != 1 {
		t.Errorf("before: %+v", s)
	}
	b.RemoveWorker(workerID(1))
	b.RemoveWorker(workerID(1))
	b.PrefillDone("a")
	b.OutputBlock("b")
	b.wantMissing("worker 1/0 is not known", 1, index.Hits{})
	b.RemoveWorker(workerID(2))
	b.reportDisk(9, 1, 1000, 0)
	b.reportCopies(2, 1, 10)
	if s := b.Stats(); s.Workers != 0 || s.Pools != 0 || s.Requests != 0 || s.Unknown != 2 {
		t.Errorf("after: %+v", s)
	}
	if len(b.models) != 0 || len(b.pools) != 0 {
		t.Errorf("%d models, %d pools are left", len(b.models), len(b.pools))
	}
}

// TestASilentRequestIsForgotten by the next one on its worker.
func TestASilentRequestIsForgotten(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.book("a", 1, 1000)
	b.compute("b", 1, 1000, 1)
	b.pass(maxDecode + time.Second)
	b.book("c", 1, 1000)
	if s := b.Stats(); s.Requests != 1 || s.Expired != 2 {
		t.Errorf("%+v", s)
	}
}

// TestAbsurdReportsGiveNumbers: whatever an agent says, prices are finite, and no
// request is waited for longer than it is followed.
func TestAbsurdReportsGiveNumbers(t *testing.T) {
	for _, c := range [][2]uint64{{math.MaxUint64, 1}, {1, math.MaxUint64}, {math.MaxUint64, math.MaxUint64}} {
		b := newBench(t, Options{MinSamples: 1})
		b.SetWorker(workerID(1), 9, "m")
		b.learn(1, 8, 1)
		b.reportCopies(1, 1, 10)
		b.reportDisk(9, 1, 1000, 0)
		b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{
			Waiting: math.MaxUint64, Running: math.MaxUint64, CopyBytes: c[0], CopyMicros: c[1], DeviceBlocksTotal: 1, DeviceBlocksUsed: math.MaxUint64,
		}})
		b.Report(&kvevent.LoadReport{Owner: kv.PoolOwner(9), Pool: kvevent.PoolLoad{
			BlockBytes: math.MaxUint64, DiskReadBytes: c[0], DiskReadMicros: c[1], ReadQueue: math.MaxUint64,
		}})
		hits := index.Hits{kv.TierHost: math.MaxUint32, kv.TierDisk: math.MaxUint32}
		if p, why := b.price(1, 1000, hits, math.MaxInt64); why != "" || !(p.TTFT >= 0 && p.Total(0) <= math.MaxFloat64) {
			t.Errorf("%v: %+v, %q", c, p, why)
		}
		b.Booked(&Booking{ID: "a", Worker: workerID(1), Tokens: 1000, BlockSize: testBlock, Hits: hits})
		if d := b.requests["a"].blocksReady.Sub(b.now); d < 0 || d > maxSilence {
			t.Errorf("%v: ready after %v", c, d)
		}
	}
}

// TestSharedBlocksAreNotComputed: a block of the shared cache that the worker lacks counts as cached by
// the multiplier.
func TestSharedBlocksAreNotComputed(t *testing.T) {
	shared := schedule.FromRanges([]schedule.Range{{First: 0, End: 50}})
	for multiplier, want := range map[float64]float64{0: 1000 - 10*testBlock, 0.5: 1000 - 10*testBlock - 40*testBlock/2, 1: 1000 - 50*testBlock} {
		in := selection(1, 1000, index.Hits{}, 0)
		in.Request.SharedHits, in.Config.SharedMultiplier = &shared, multiplier
		if got := promptTokens(in, index.Hits{kv.TierDevice: 10}); got != want {
			t.Errorf("multiplier %v: %v tokens to compute, want %v", multiplier, got, want)
		}
	}
}
