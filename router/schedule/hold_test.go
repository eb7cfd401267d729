package schedule

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// waits is an estimator for tests: a worker's wait is its pending tokens, and base is the rest of its
// price. The test changes base.
type waits struct{ base map[kv.WorkerID]float64 }

func (w *waits) Prices(in *Selection, prices []price.Price) (why string, ok bool) {
	for k := range prices {
		m := in.At(k)
		wait := float64(in.Loads.PrefillTokens[m])
		ms := wait + w.base[in.Members.List[m].Worker.ID]
		prices[k] = price.Price{Wait: wait, TTFT: ms, Machine: ms}
	}
	return "", true
}

// inPricedLine is inLine with prices, of the objective that counts a wait once, and a longest wait of 5 seconds.
func inPricedLine(t *testing.T, base map[kv.WorkerID]float64, change func(*Options), test func(*testing.T, *line)) {
	inLine(t, len(base), func(o *Options) {
		o.Config.Price, o.Config.Objective, o.Estimator, o.Queue.MaxWait = true, price.Throughput, &waits{base}, 5*time.Second
		if change != nil {
			change(o)
		}
	}, test)
}

// TestARequestWaitsForABetterWorker: worker 1 is busy and cheaper than worker 2, which is free. The
// request waits in the queue and goes to worker 1 when that is released; others are not held up.
func TestARequestWaitsForABetterWorker(t *testing.T) {
	base := map[kv.WorkerID]float64{1: 1, 2: 500}
	inPricedLine(t, base, nil, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.expect("a@1")
		l.send(t.Context(), "b", nil)
		l.send(t.Context(), "elsewhere", func(r *Request) { r.Pinned = pin(kv.Worker{ID: 2}) })
		l.expect("elsewhere@2")
		l.scheduler.Free("elsewhere")
		if s := l.scheduler.Stats().Queue; s.Pending != 1 || s.Held != 1 {
			t.Errorf("%+v", s)
		}
		l.scheduler.Free("a")
		l.expect("b@1")
	})
}

// TestARequestNeverWaitsWhenAFreeWorkerIsCheaper: not even than the wait alone.
func TestARequestNeverWaitsWhenAFreeWorkerIsCheaper(t *testing.T) {
	inPricedLine(t, map[kv.WorkerID]float64{1: 1, 2: 90}, nil, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1", "b@2")
	})
}

// TestAHeldRequestChangesItsMind: a tick prices again, and the free worker has become the better one.
func TestAHeldRequestChangesItsMind(t *testing.T) {
	base := map[kv.WorkerID]float64{1: 1, 2: 500}
	inPricedLine(t, base, nil, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1")
		l.scheduler.Tick()
		l.expect()
		base[2] = 50
		l.scheduler.Tick()
		l.expect("b@2")
	})
}

// TestNoRequestWaitsLongerThanTheLimit: neither for a better worker nor for any; then it goes to the best
// one, busy or not. A queue without a limit holds no request.
func TestNoRequestWaitsLongerThanTheLimit(t *testing.T) {
	base := map[kv.WorkerID]float64{1: 1, 2: 500}
	inPricedLine(t, base, nil, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1")
		time.Sleep(4 * time.Second)
		l.scheduler.Tick()
		l.expect()
		time.Sleep(time.Second)
		l.scheduler.Tick()
		l.expect("b@1")
		if s := l.scheduler.Stats().Queue; s.Overdue != 1 || s.Pending != 0 || s.Dispatched != 1 || s.Queued != 1 {
			t.Errorf("%+v", s)
		}
	})
	inPricedLine(t, map[kv.WorkerID]float64{1: 1}, nil, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		time.Sleep(5 * time.Second)
		l.scheduler.Tick()
		l.expect("a@1", "b@1")
	})
	inPricedLine(t, base, func(o *Options) { o.Queue.MaxWait = 0 }, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1", "b@1")
	})
}

// TestAFullQueueHoldsNobody: a request that has a free worker is not refused. It goes to the cheapest worker,
// busy or free, whose price includes the request that waits for it.
func TestAFullQueueHoldsNobody(t *testing.T) {
	for other, want := range map[float64]string{200: "c@2", 300: "c@1"} { // worker 1 costs 203
		base := map[kv.WorkerID]float64{1: 1, 2: 500}
		inPricedLine(t, base, func(o *Options) { o.Queue.MaxPending = 1 }, func(t *testing.T, l *line) {
			for _, id := range []string{"a", "b"} {
				l.send(t.Context(), id, nil)
			}
			base[2] = other
			l.send(t.Context(), "c", nil)
			l.expect("a@1", want)
			l.scheduler.Free("a")
			if l.scheduler.Free("c"); other == 200 {
				l.expect("b@1")
			}
			if s := l.scheduler.Stats().Queue; s.RejectedRequests != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestAHeldRequestIsNotOvertaken: those that come later reckon with the prompts that wait for a worker,
// and find a worker taken that time alone has made free.
func TestAHeldRequestIsNotOvertaken(t *testing.T) {
	base := map[kv.WorkerID]float64{1: 1, 2: 250}
	inPricedLine(t, base, nil, func(t *testing.T, l *line) {
		for _, id := range []string{"a", "b", "c", "d"} {
			l.send(t.Context(), id, nil)
		}
		l.expect("a@1", "d@2") // 101 and 202 tokens are a shorter wait than 250 ms, 303 are not
		l.send(t.Context(), "urgent", func(r *Request) { r.StrictPriority = 1 })
		l.expect() // it waits before those of lower priority
		for _, step := range [][2]string{{"a", "urgent@1"}, {"urgent", "b@1"}, {"b", "c@1"}} {
			l.scheduler.Free(step[0])
			l.expect(step[1])
		}
	})
	decays := func(o *Options) {
		o.PrefillDuration = func(kv.Worker, int, int) time.Duration { return time.Second }
	}
	inPricedLine(t, map[kv.WorkerID]float64{1: 1, 2: 5000}, decays, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1")
		time.Sleep(500 * time.Millisecond) // worker 1 has 50 tokens left, and nothing has been released
		l.send(t.Context(), "c", nil)
		l.expect("b@1")
	})
}

// TestHeldRequestsAreNeverOvertaken: whatever comes and ends, no request gets a worker for which an earlier
// one of no lower priority waits on, and none waits when nothing runs. A request that finds the queue full may
// go to a busy worker: it queues at the engine.
func TestHeldRequestsAreNeverOvertaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, limit, members := make(map[kv.WorkerID]float64), int64(100), fleet(3)
		for w := range kv.WorkerID(3) {
			base[w+1] = float64(rapid.IntRange(1, 900).Draw(t, "base"))
		}
		room := rapid.IntRange(1, 6).Draw(t, "room")
		s, err := New(Options{Config: DefaultConfig(), Estimator: &waits{base}, Queue: queue.Options{Class: queue.Class{ThresholdTokens: &limit},
			MaxWait: time.Hour, MaxPending: room}})
		if err != nil {
			t.Fatal(err)
		}
		s.config.Price = true
		type sent struct {
			*waiter
			favourite *kv.Worker // before the operation
		}
		var waiting []sent
		var running []string
		n := 0
		// check looks at the requests that got a worker by an operation. r is one that arrived and was not queued.
		check := func(r *Request, result Result) {
			var got []*waiter
			var left []sent
			for _, w := range waiting {
				select {
				case <-w.settled:
					running, got = append(running, w.request.ID), append(got, w.waiter)
				default:
					left = append(left, w)
				}
			}
			if r != nil {
				running, got = append(running, r.ID), append(got, &waiter{item: queue.Item{StrictPriority: r.StrictPriority}, request: r, result: result})
			}
			for _, g := range got {
				for _, w := range left {
					earlier := len(w.request.ID) < len(g.request.ID) || len(w.request.ID) == len(g.request.ID) && w.request.ID < g.request.ID
					if w.favourite != nil && *w.favourite == g.result.Worker && *w.item.Favourite == g.result.Worker && w.item.StrictPriority >= g.item.StrictPriority && earlier {
						t.Fatalf("request %s gets worker %s, for which %s waits", g.request.ID, g.result.Worker, w.request.ID)
					}
				}
			}
			for k := range left {
				left[k].favourite = left[k].item.Favourite
			}
			waiting = left
		}
		end := func(at int) {
			id := running[at]
			running = slices.Delete(running, at, at+1)
			s.Free(id)
			check(nil, Result{})
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				n++
				r := &Request{ID: fmt.Sprint(n), Book: true, Tokens: rapid.IntRange(1, 300).Draw(t, "tokens"), BlockSize: 16, TrackPrefill: true, Members: members,
					StrictPriority: rapid.Uint32Range(0, 1).Draw(t, "priority")}
				full, before := s.PendingCount() == room, slices.Clone(s.account.Columns().PrefillTokens)
				w, result, err := s.decideOrQueue(r)
				switch {
				case errors.Is(err, queue.ErrRejected):
				case err != nil:
					t.Fatal(err)
				case w != nil:
					waiting = append(waiting, sent{w, nil})
					check(nil, Result{})
				case full && before[result.Member] > limit:
					running = append(running, r.ID)
				default:
					check(r, result)
				}
			},
			"end": func(t *rapid.T) {
				if len(running) > 0 {
					end(rapid.IntRange(0, len(running)-1).Draw(t, "which"))
				}
			},
			"tick": func(*rapid.T) {
				s.Tick()
				check(nil, Result{})
			},
		})
		for len(running) > 0 {
			end(0)
		}
		if len(waiting) > 0 || s.PendingCount() > 0 {
			t.Fatalf("%d wait and nothing runs", len(waiting))
		}
	})
}

// TestAnOverdueRequestOutlastsAnOverload: like every request that waits it is not refused, and it goes as
// soon as some worker is no longer overloaded, busy or not.
func TestAnOverdueRequestOutlastsAnOverload(t *testing.T) {
	limit := int64(150)
	for _, pinned := range []*kv.Worker{nil, pin(kv.Worker{ID: 1})} {
		inPricedLine(t, map[kv.WorkerID]float64{1: 1}, func(o *Options) { o.Busy.PrefillTokens = &limit }, func(t *testing.T, l *line) {
			l.send(t.Context(), "a", nil)
			l.send(t.Context(), "b", func(r *Request) { r.Pinned = pinned })
			l.expect("a@1")
			overload := int64(100)
			if err := l.scheduler.SetBusy(BusyThresholds{PrefillTokens: &overload}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(6 * time.Second)
			l.scheduler.Tick()
			l.expect()
			if s := l.scheduler.Stats(); s.Queue.Overdue != 1 || s.Queue.Pending != 1 || s.Overloaded != 0 {
				t.Errorf("%+v", s)
			}
			if _, err := l.scheduler.Schedule(t.Context(), l.request("c", nil)); !errors.Is(err, ErrAllOverloaded) {
				t.Errorf("a request that arrives: %v", err)
			}
			if err := l.scheduler.SetBusy(BusyThresholds{PrefillTokens: &limit}); err != nil {
				t.Fatal(err)
			}
			l.expect("b@1") // which is busy still
		})
	}
}

// TestAHeldRequestIsExplainedOnce: by the decision that counts.
func TestAHeldRequestIsExplainedOnce(t *testing.T) {
	inPricedLine(t, map[kv.WorkerID]float64{1: 1, 2: 5000}, nil, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		var explained []Candidate
		l.send(t.Context(), "b", func(r *Request) { r.Explain = func(c *Candidate) { explained = append(explained, *c) } })
		for range 3 {
			l.scheduler.Tick()
		}
		if len(explained) != 0 {
			t.Errorf("%d candidates while it waits", len(explained))
		}
		l.scheduler.Free("a")
		l.expect("a@1", "b@1")
		if len(explained) != 2 || explained[0].PendingPrefill != 0 || explained[1].Cost != 5000 {
			t.Errorf("%+v", explained)
		}
	})
}

// TestHeldRequestsKeepTheirOrder: whoever is returned to the queue keeps its place, and a caller that
// leaves is forgotten.
func TestHeldRequestsKeepTheirOrder(t *testing.T) {
	base := map[kv.WorkerID]float64{1: 1, 2: 5000}
	inPricedLine(t, base, nil, func(t *testing.T, l *line) {
		for n := range 5 {
			l.send(t.Context(), fmt.Sprint(n), nil)
		}
		l.expect("0@1")
		for n := range 4 {
			l.scheduler.Tick()
			l.scheduler.Free(fmt.Sprint(n))
			l.expect(fmt.Sprintf("%d@1", n+1))
			synctest.Wait()
		}
		if s := l.scheduler.Stats().Queue; s.Pending != 0 || s.Lanes != 0 || s.Dispatched != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// TestUncachedTokens: those that no worker in question has cached; WSPT orders by them. Both workers
// are busy; worker 2 has the prompt's blocks, and only worker 1 has the taint.
func TestUncachedTokens(t *testing.T) {
	limit := int64(1)
	for _, c := range []struct {
		name   string
		tokens int
		blocks float64
		change func(*Request)
		want   int
	}{
		{"the best worker", 1024, 60, nil, 64},
		{"pinned to one with a block", 1024, 1, func(r *Request) { r.Pinned = pin(kv.Worker{ID: 2}) }, 1008},
		{"pinned to one without", 1024, 60, func(r *Request) { r.Pinned = pin(kv.Worker{ID: 1}) }, 1024},
		{"nobody has it", 512, 0, nil, 512},
		{"more cached than asked for", 512, 60, nil, 1},
		{"who has it may not serve", 1024, 60, func(r *Request) { r.RequiredTaints = []string{"a"} }, 1008},
	} {
		s := newScheduler(t, func(o *Options) {
			o.Queue = queue.Options{Class: queue.Class{ThresholdTokens: &limit, Discipline: queue.WSPT}}
			o.Worker = func(w kv.Worker) WorkerConfig {
				if w.ID == 1 {
					return WorkerConfig{Taints: []string{"a"}}
				}
				return WorkerConfig{}
			}
		})
		members := fleet(2)
		for _, m := range members.List {
			load := &Request{ID: "load of " + m.Worker.String(), Tokens: 100, BlockSize: 16, TrackPrefill: true, Members: members}
			if err := s.Add(load, m.Worker, 0); err != nil {
				t.Fatal(err)
			}
		}
		r := &Request{ID: "r", Book: true, Tokens: c.tokens, BlockSize: 16, TrackPrefill: true, Members: members, Overlaps: []Overlap{{Member: 1, Blocks: c.blocks}}}
		if c.blocks == 60 && c.change != nil { // worker 1 has one block itself
			r.Overlaps = []Overlap{{Member: 0, Blocks: 1}, {Member: 1, Blocks: c.blocks}}
		}
		if c.name == "pinned to one without" {
			r.Overlaps = r.Overlaps[1:]
		}
		if c.change != nil {
			c.change(r)
		}
		w, _, err := s.decideOrQueue(r)
		if err != nil || w == nil {
			t.Fatalf("%s: %v, %v", c.name, w, err)
		}
		if w.item.Uncached() != c.want {
			t.Errorf("%s: %d uncached tokens, want %d", c.name, w.item.Uncached(), c.want)
		}
	}
}
