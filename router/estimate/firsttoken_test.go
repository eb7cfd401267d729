package estimate

import (
	"fmt"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// routed is a bench with a scheduler before it. Its worker 1 of pool 9 computes 1,000
// tokens a second, its blocks come at once.
type routed struct {
	*bench
	scheduler *schedule.Scheduler
	members   *index.Members
}

func newRouted(t *testing.T, change func(*schedule.Options)) *routed {
	t.Helper()
	r := &routed{bench: newBench(t, Options{}), members: &index.Members{List: []index.Member{{Worker: workerID(1), Pool: 9}}}}
	r.SetWorker(workerID(1), 9, "m")
	r.serve(1, 5, 1000)
	r.reportCopies(1, 5, 1<<10)
	r.reportDisk(9, 5, 1_000_000, 0)
	o := schedule.Options{Config: schedule.DefaultConfig(), Estimator: r.Estimator, Load: load.Options{Now: func() time.Time { return r.now }}}
	o.Config.Cost = true
	change(&o)
	var err error
	if r.scheduler, err = schedule.New(o); err != nil {
		t.Fatal(err)
	}
	return r
}

// request asks where a prompt would go of which worker 1 has hits.
func (r *routed) request(tokens int, hits index.Hits) *schedule.Request {
	return &schedule.Request{Tokens: tokens, BlockSize: testBlock, TrackPrefill: true, Members: r.members,
		Hits: []index.Hit{{Member: 0, Hits: hits}}}
}

// wantMS checks what a request is expected to take in ms, to a hundredth and one.
func (r *routed) wantMS(q *schedule.Request, ms float64) {
	r.t.Helper()
	got, err := r.scheduler.Schedule(r.t.Context(), q)
	if err != nil || got.Mode != schedule.ModeCost || got.Cost < ms*0.99-1 || got.Cost > ms*1.01+1 {
		r.t.Errorf("%v ms by %s, %v; want %v", got.Cost, got.Mode, err, ms)
	}
	if q.Book {
		r.Booked(&Booking{ID: q.ID, Worker: got.Worker, Tokens: q.Tokens, BlockSize: q.BlockSize, Hits: q.Hits[0].Hits, Untracked: !q.TrackPrefill})
	}
}

func untracked(q *schedule.Request) *schedule.Request {
	q.TrackPrefill = false
	return q
}

func booked(id string, q *schedule.Request) *schedule.Request {
	q.ID, q.Book = id, true
	return q
}

// TestTheQueueIsWhatIsLeftToCompute: blocks that come from a lower tier are not in it,
// what was not tracked is, and so is what others have put on the account; each once.
func TestTheQueueIsWhatIsLeftToCompute(t *testing.T) {
	r := newRouted(t, func(*schedule.Options) {})
	r.wantMS(booked("a", r.request(16_000, index.Hits{kv.TierDisk: 999})), 16+2)
	r.pass(10 * time.Millisecond)
	r.wantMS(r.request(16, index.Hits{}), 8+16)
	r.wantMS(booked("b", untracked(r.request(5_000, index.Hits{}))), 5_000+8)
	r.wantMS(r.request(16, index.Hits{}), 5_000+8+16)
	if err := r.scheduler.Add(&schedule.Request{ID: "c", Tokens: 3_000, BlockSize: testBlock, TrackPrefill: true}, workerID(1), 1_000); err != nil {
		t.Fatal(err)
	}
	r.wantMS(r.request(16, index.Hits{}), 2_000+5_000+8+16)
	r.scheduler.Free("c")
	r.wantMS(r.request(16, index.Hits{}), 5_000+8+16)
}

// TestProgressIsTakenOffOnce: whether the account models prefills as well or not.
func TestProgressIsTakenOffOnce(t *testing.T) {
	for name, modelled := range map[string]func(w kv.Worker, tokens, cached int) time.Duration{
		"not modelled":  nil,
		"modelled":      func(_ kv.Worker, tokens, _ int) time.Duration { return time.Duration(tokens) * time.Millisecond },
		"as too fast":   func(_ kv.Worker, tokens, _ int) time.Duration { return time.Duration(tokens) * time.Microsecond },
		"as ever going": func(kv.Worker, int, int) time.Duration { return time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRouted(t, func(o *schedule.Options) { o.PrefillDuration = modelled })
			r.wantMS(booked("a", r.request(10_000, index.Hits{})), 10_000)
			r.pass(5 * time.Second)
			r.wantMS(r.request(1_000, index.Hits{}), 6_000)
		})
	}
}

// TestWhoWaitsForBlocksIsNotAhead of a request that has to wait for none: it is computed
// meanwhile. Of one whose blocks come after those, it is.
func TestWhoWaitsForBlocksIsNotAhead(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.serve(1, 3, 10_000)
	b.reportCopies(1, 3, 1<<12)
	b.reportDisk(9, 3, 1000, 0)
	b.Booked(&Booking{ID: "a", Worker: workerID(1), Tokens: 9_600, BlockSize: testBlock, Hits: index.Hits{kv.TierDisk: 500}})
	b.want(100, 1, 1000, index.Hits{}, 0)
	b.want(100, 1, 1000+16, index.Hits{kv.TierDevice: 1}, 0)
	b.want(501+160+100, 1, 1000+16, index.Hits{kv.TierDisk: 1}, 0)
	b.pass(450 * time.Millisecond)
	b.want(100, 1, 1000, index.Hits{}, 0)
	b.pass(52 * time.Millisecond)
	b.want(160+100, 1, 1000, index.Hits{}, 0)
	b.pass(98 * time.Millisecond)
	b.want(60+100, 1, 1000, index.Hits{}, 0)
}

// TestExternalBlocksCountAsToBeComputed: nobody measures their way, and one worker that
// has some does not keep all from being weighed by cost.
func TestExternalBlocksCountAsToBeComputed(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.serve(1, 3, 10_000)
	b.want(100, 1, 1000, index.Hits{kv.TierExternal: 50}, 0)
	b.want(100-16, 1, 1000, index.Hits{kv.TierDevice: 10, kv.TierExternal: 50}, 0)
}

// TestDecisionsFollowTheMembers: a worker that joins, leaves or comes back is asked for
// by the list that the decision is made from.
func TestDecisionsFollowTheMembers(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(3), 0, "m")
	b.serve(3, 3, 10_000)
	ask := func(n int, want string) {
		t.Helper()
		ms := make([]float64, n)
		in := &schedule.Selection{Request: &schedule.Request{Tokens: 1000, BlockSize: testBlock}, Members: members(n),
			Loads: &load.Columns{PrefillTokens: make([]int64, n)}}
		why, _ := b.FirstTokens(in, ms)
		if got := fmt.Sprintf("%.0f %s", ms, why); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	ask(3, "[0 0 0] worker 0/0 is not known")
	for w := range uint64(3) {
		b.SetWorker(workerID(w), 0, "m")
	}
	ask(4, "[100 100 100 100] ")
	b.serve(1, 3, 5_000)
	ask(3, "[100 200 100] ")
	ask(5, "[100 200 100 100 0] worker 4/0 is not known")
	b.RemoveWorker(workerID(1))
	ask(3, "[100 0 0] worker 1/0 is not known")
	b.SetWorker(workerID(1), 0, "m")
	ask(3, "[100 100 100] ")
}

// large is an Estimator that has rates of n workers, some of which are busy.
func large(t testing.TB, n int) *Estimator {
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range n {
		w := workerID(uint64(i))
		e.SetWorker(w, uint64(i/8+1), "m")
		for range 3 {
			e.workers[w].prefill.tokenRate.add(sample{1000, 0.1}, now)
			e.workers[w].copyRate.add(sample{1e9, 0.1}, now)
			e.workers[w].pool.diskRate.add(sample{1e9, 1}, now)
		}
		e.workers[w].pool.blockBytes = 1 << 20
		for k := range i % 4 {
			e.Booked(&Booking{ID: fmt.Sprint(i, k), Worker: w, Tokens: 100_000, BlockSize: testBlock})
		}
	}
	return e
}

// TestADecisionAllocatesNothing: it looks at every worker.
func TestADecisionAllocatesNothing(t *testing.T) {
	e, ms := large(t, 100), make([]float64, 100)
	in := &schedule.Selection{Members: members(100), Loads: &load.Columns{PrefillTokens: make([]int64, 100)},
		Request: &schedule.Request{Tokens: 1000, BlockSize: testBlock, Hits: []index.Hit{{Member: 7, Hits: index.Hits{1, 2, 3}}}}}
	ask := func() {
		if why, ok := e.FirstTokens(in, ms); !ok {
			t.Fatal(why)
		}
	}
	ask()
	if n := testing.AllocsPerRun(100, ask); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDecision is one decision by cost, and one by weights, over 10,000 workers, of
// which three quarters are busy and a hundredth have part of the prompt.
func BenchmarkDecision(b *testing.B) {
	const n = 10_000
	r := &schedule.Request{Tokens: 2048, BlockSize: testBlock, TrackPrefill: true, Members: members(n)}
	for m := int32(0); m < n; m += 100 {
		r.Hits = append(r.Hits, index.Hit{Member: m, Hits: index.Hits{10, 20, 30}})
	}
	for _, cost := range []bool{false, true} {
		b.Run(fmt.Sprintf("workers=%d/cost=%v", n, cost), func(b *testing.B) {
			o := schedule.Options{Config: schedule.DefaultConfig(), Estimator: large(b, n)}
			o.Config.Cost = cost
			s, err := schedule.New(o)
			if err != nil {
				b.Fatal(err)
			}
			ctx := b.Context()
			if _, err := s.Schedule(ctx, r); err != nil { // makes the memory of a decision
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if got, err := s.Schedule(ctx, r); err != nil || cost != (got.Mode == schedule.ModeCost) {
					b.Fatal(got.Mode, err)
				}
			}
		})
	}
}

// TestSharedBlocksAreNotComputed: the multiplier's part of the blocks that the shared
// cache has and the worker has not need no computing.
func TestSharedBlocksAreNotComputed(t *testing.T) {
	shared := schedule.FromRanges([]schedule.Range{{First: 0, End: 4}})
	for _, c := range []struct {
		multiplier float64
		shared     *schedule.SharedHits
		device     uint32
		want       float64
	}{{0.5, &shared, 0, 100 - 32}, {0.5, &shared, 2, 100 - 32 - 16}, {1, &shared, 6, 4}, {0, &shared, 0, 100}, {0.5, nil, 0, 100}} {
		in := &schedule.Selection{Config: &schedule.Config{SharedMultiplier: c.multiplier},
			Request: &schedule.Request{Tokens: 100, BlockSize: 16, SharedHits: c.shared}}
		if got := promptTokens(in, index.Hits{kv.TierDevice: c.device}); got != c.want {
			t.Errorf("%+v: %v tokens", c, got)
		}
	}
}
