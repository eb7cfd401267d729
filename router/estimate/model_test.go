package estimate

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// TestBusyTimeIsThatOfTheClock: whatever overlaps and in whatever order first tokens
// come, all samples together have the tokens that were computed and the milliseconds in
// which at least one ready prompt was pending.
func TestBusyTimeIsThatOfTheClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p prefills
		now := time.Unix(1000, 0)
		var requests []*request
		var busy time.Duration
		seconds, got, tokens := 0.0, 0.0, 0
		end := func(i int) {
			r := requests[i]
			requests = append(requests[:i], requests[i+1:]...)
			tokens += r.tokensToCompute
			if s, ok := p.finish(r, 100, 0, 2048, now); ok || s.x[0] > 0 {
				seconds, got = seconds+s.y, got+s.x[1]*1e3
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				load := time.Duration(rapid.IntRange(0, 20).Draw(t, "load")) * time.Millisecond
				r := &request{tokensToCompute: rapid.IntRange(1, 200).Draw(t, "tokens"), blocksReady: now.Add(load)}
				requests = append(requests, r)
				p.add(r)
			case 1:
				if len(requests) > 0 {
					end(rapid.IntRange(0, len(requests)-1).Draw(t, "ends"))
				}
			case 2:
				for range rapid.IntRange(1, 30).Draw(t, "ms") {
					for _, r := range requests {
						if !r.blocksReady.After(now) {
							busy += time.Millisecond
							break
						}
					}
					now = now.Add(time.Millisecond)
				}
			}
		}
		for len(requests) > 0 {
			end(0)
		}
		seconds, got = seconds+p.seconds, got+p.batch[1]*1e3
		if math.Abs(got-float64(tokens)) > 1e-6 || math.Abs(seconds-busy.Seconds()) > 1e-9 {
			t.Fatalf("%v tokens in %v s, want %d in %v", got, seconds, tokens, busy)
		}
		if len(p.pending) != 0 || p.tokens != 0 {
			t.Fatalf("%d pending with %d tokens", len(p.pending), p.tokens)
		}
	})
}

// TestFollowedRequestsAreAccountedFor: in any order of calls, known and unknown names,
// workers that come and go: what is pending is what was sent and has not ended, and an
// estimate is a finite number.
func TestFollowedRequestsAreAccountedFor(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t, Options{MinSamples: 1, MinTokens: 1, MaxRequests: 6})
		known := map[uint64]bool{}
		pending := map[string]uint64{}
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			id, w := rapid.StringMatching("[a-h]").Draw(rt, "id"), rapid.Uint64Range(1, 3).Draw(rt, "worker")
			switch rapid.IntRange(0, 7).Draw(rt, "what") {
			case 0, 1:
				b.Booked(&Booking{ID: id, Worker: workerID(w), Tokens: rapid.IntRange(0, 500).Draw(rt, "tokens"),
					BlockSize: testBlock, Hits: index.Hits{1, 2, 3}})
				if _, taken := pending[id]; known[w] && !taken && len(pending) < 6 {
					pending[id] = w
				}
			case 2:
				b.PrefillDone(id)
				b.OutputBlock(id)
			case 3:
				b.Dropped(id)
				delete(pending, id)
			case 4:
				b.SetWorker(workerID(w), rapid.Uint64Range(0, 2).Draw(rt, "pool"), rapid.StringMatching("[mn]").Draw(rt, "model"))
				known[w] = true
			case 5:
				b.RemoveWorker(workerID(w))
				delete(known, w)
				for id, on := range pending {
					if on == w {
						delete(pending, id)
					}
				}
			case 6:
				b.reportDisk(w, 1, rapid.Uint64Range(0, 10).Draw(rt, "megabytes"), 7)
				b.reportCopies(w, 1, rapid.Uint64Range(0, 10).Draw(rt, "megabytes"))
			case 7:
				b.pass(time.Duration(rapid.IntRange(0, 5000).Draw(rt, "ms")) * time.Millisecond)
			}
			s, followed := b.Stats(), 0
			for _, m := range b.Measures() {
				followed += m.Pending + m.Running
				if m.PendingTokens < m.Pending || m.DiskQueue < 0 {
					rt.Fatalf("%+v", m)
				}
			}
			if s.Requests != len(pending) || followed != len(pending) || s.Workers != len(known) {
				rt.Fatalf("%+v and %d pending, want %d of %d workers", s, followed, len(pending), len(known))
			}
			ms, _ := b.ask(w, 1000, index.Hits{1, 2, 3}, 100)
			if !(ms >= 0 && ms < 1e12) {
				rt.Fatalf("%v ms", ms)
			}
		}
	})
}

// TestEveryCallMayComeAtAnyTime: from many goroutines.
func TestEveryCallMayComeAtAnyTime(t *testing.T) {
	e, err := New(Options{MinSamples: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{Estimator: e, t: t}
	var all sync.WaitGroup
	for g := range uint64(4) {
		all.Go(func() {
			for i := range 300 {
				w, id := uint64(i%3), fmt.Sprint(g, i)
				e.SetWorker(workerID(w), w, "m")
				e.Booked(&Booking{ID: id, Worker: workerID(w), Tokens: 500, BlockSize: testBlock, Hits: index.Hits{kv.TierDisk: 2}})
				b.reportDisk(w, 1, 10, 1)
				b.reportCopies(w, 1, 10)
				e.Prices(selection(w, 500, index.Hits{}, 0), make([]price.Price, 1))
				e.OutputBlock(id)
				if i%2 == 0 {
					e.PrefillDone(id)
				}
				e.Dropped(id)
				e.Measures()
				if i%50 == 0 {
					e.RemoveWorker(workerID(w))
				}
			}
		})
	}
	all.Wait()
	if s := e.Stats(); s.Requests != 0 {
		t.Errorf("%+v", s)
	}
}

// TestOptionsAreChecked: what is out of range is named.
func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]Options{
		"estimate min samples: 17 is not in 0..16":        {MinSamples: 17},
		"estimate min tokens: -1 is not in 0..1048576":    {MinTokens: -1},
		"estimate max workers: -1 is not in 0..1048576":   {MaxWorkers: -1},
		"estimate max requests: -1 is not in 0..16777216": {MaxRequests: -1},
		"estimate max age: -1s is negative":               {MaxAge: -time.Second},
	} {
		if _, err := New(o); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
