package schedule

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outcome is what came of a request that may have waited.
type outcome struct {
	id     string
	result Result
	err    error
}

// line is a scheduler with requests that may wait in front of it. It is for use
// in a synctest bubble.
type line struct {
	t         *testing.T
	scheduler *Scheduler
	members   *index.Members
	outcomes  chan outcome
}

// newLine has n workers that are busy with more than 100 tokens.
func newLine(t *testing.T, n int, change func(*Options)) *line {
	limit := int64(100)
	l := &line{t: t, members: fleet(n), outcomes: make(chan outcome, 100)}
	l.scheduler = newScheduler(t, func(o *Options) {
		o.Queue.ThresholdTokens = &limit
		if change != nil {
			change(o)
		}
	})
	return l
}

// request is one of 101 tokens, which makes a worker busy.
func (l *line) request(id string, change func(*Request)) *Request {
	r := &Request{ID: id, Book: true, Tokens: 101, BlockSize: 16, TrackPrefill: true, Members: l.members}
	if change != nil {
		change(r)
	}
	return r
}

// send schedules a request and waits until it has a worker or waits for one.
func (l *line) send(ctx context.Context, id string, change func(*Request)) {
	go func() {
		result, err := l.scheduler.Schedule(ctx, l.request(id, change))
		l.outcomes <- outcome{id, result, err}
	}()
	synctest.Wait()
}

// settled are the ids of the requests that got a worker since the last call, in
// order of their workers' account, and checks that none failed.
func (l *line) settled() []string {
	l.t.Helper()
	synctest.Wait()
	var list []string
	for {
		select {
		case o := <-l.outcomes:
			if o.err != nil {
				l.t.Errorf("request %s: %v", o.id, o.err)
			}
			list = append(list, fmt.Sprintf("%s@%d", o.id, o.result.Worker.ID))
		default:
			slices.Sort(list)
			return list
		}
	}
}

func (l *line) expect(want ...string) {
	l.t.Helper()
	if got := l.settled(); !slices.Equal(got, want) {
		l.t.Errorf("settled %v, want %v", got, want)
	}
}

// inLine runs a test in a bubble.
func inLine(t *testing.T, n int, change func(*Options), test func(*testing.T, *line)) {
	synctest.Test(t, func(t *testing.T) { test(t, newLine(t, n, change)) })
}

// TestRequestsWaitWhileAllWorkersAreBusy: and go in their order, one per worker
// that is ready again, whether by prefill, by end, or by removal.
func TestRequestsWaitWhileAllWorkersAreBusy(t *testing.T) {
	inLine(t, 2, nil, func(t *testing.T, l *line) {
		s, ctx := l.scheduler, t.Context()
		l.send(ctx, "a", nil)
		l.send(ctx, "b", nil)
		l.expect("a@1", "b@2")
		for _, id := range []string{"c", "d", "e", "f"} {
			l.send(ctx, id, nil)
		}
		l.send(ctx, "untracked", func(r *Request) { r.TrackPrefill = false })
		l.expect("untracked@1")
		if s.PendingCount() != 4 || s.PendingTokens() != 404 {
			t.Errorf("%d wait with %d tokens", s.PendingCount(), s.PendingTokens())
		}
		time.Sleep(3 * time.Second)
		if err := s.MarkPrefillCompleted("b"); err != nil {
			t.Error(err)
		}
		l.expect("c@2")
		s.Free("a")
		l.expect("d@1")
		s.RemoveWorker(kv.Worker{ID: 2})
		l.expect("e@2")
		if s.Free("e"); s.PendingCount() != 0 {
			t.Errorf("%d wait", s.PendingCount())
		}
		l.expect("f@2")
	})
}

// TestPriorityMovesARequestForward: strict priority first, then the jump in
// seconds against the time of arrival.
func TestPriorityMovesARequestForward(t *testing.T) {
	inLine(t, 1, nil, func(t *testing.T, l *line) {
		ctx := t.Context()
		l.send(ctx, "a", nil)
		l.send(ctx, "plain", nil)
		time.Sleep(time.Second)
		l.send(ctx, "late", nil)
		l.send(ctx, "jump half", func(r *Request) { r.PriorityJump = 0.5 })
		l.send(ctx, "jump two", func(r *Request) { r.PriorityJump = 2 })
		l.send(ctx, "strict", func(r *Request) { r.StrictPriority = 1 })
		l.expect("a@1")
		last := "a"
		for _, id := range []string{"strict", "jump two", "plain", "jump half", "late"} {
			l.scheduler.Free(last)
			l.expect(id + "@1")
			last = id
		}
	})
}

// TestWaitingForOneWorkerHoldsUpNobodyElse: a pinned request, or one with allowed
// workers or taints, waits for its own.
func TestWaitingForOneWorkerHoldsUpNobodyElse(t *testing.T) {
	taints := func(o *Options) {
		o.Worker = func(w kv.Worker) WorkerConfig {
			return WorkerConfig{Taints: []string{fmt.Sprint("worker=", w.ID)}}
		}
	}
	for name, limit := range map[string]func(*Request){
		"pinned":  func(r *Request) { r.Pinned = &kv.Worker{ID: 1} },
		"allowed": func(r *Request) { r.Allowed = ids(1) },
		"taints":  func(r *Request) { r.RequiredTaints = []string{"worker=1"} },
	} {
		t.Run(name, func(t *testing.T) {
			inLine(t, 2, taints, func(t *testing.T, l *line) {
				ctx := t.Context()
				l.send(ctx, "a", nil)
				l.send(ctx, "limited", limit)
				l.send(ctx, "b", nil)
				l.expect("a@1", "b@2")
				l.send(ctx, "c", nil)
				l.scheduler.Free("b")
				l.expect("c@2")
				l.scheduler.Free("a")
				l.expect("limited@1")
			})
		})
	}
}

// TestWorkersThatComeTakeThoseThatWait: a new worker at the next Tick or
// WorkersChanged, and a larger step makes a worker less busy.
func TestWorkersThatComeTakeThoseThatWait(t *testing.T) {
	current, batch := fleet(1), uint64(50)
	fraction := 1.0
	change := func(o *Options) {
		o.Queue.ThresholdTokens, o.Queue.Threshold = nil, &fraction
		o.Members = func() *index.Members { return current }
		o.Worker = func(kv.Worker) WorkerConfig { return WorkerConfig{MaxBatchedTokens: batch} }
	}
	inLine(t, 1, change, func(t *testing.T, l *line) {
		for _, id := range []string{"a", "b", "c", "d"} {
			l.send(t.Context(), id, nil)
		}
		l.expect("a@1")
		current = fleet(2)
		l.scheduler.Tick()
		l.expect("b@2")
		l.scheduler.Tick()
		l.expect()
		current = fleet(3)
		l.scheduler.WorkersChanged()
		l.expect("c@3")
		batch = 101
		l.scheduler.WorkersChanged()
		l.expect("d@1")
		current = fleet(0)
		l.scheduler.WorkersChanged()
	})
}

// TestExpiryAndModelledPrefillFreeWorkers: time alone lets requests go, at a Tick.
func TestExpiryAndModelledPrefillFreeWorkers(t *testing.T) {
	change := func(o *Options) {
		o.Load.Expiry = time.Minute
		o.PrefillDuration = func(_ kv.Worker, tokens, _ int) time.Duration {
			if tokens == 101 {
				return 0
			}
			return 10 * time.Second
		}
	}
	inLine(t, 1, change, func(t *testing.T, l *line) {
		l.send(t.Context(), "modelled", func(r *Request) { r.Tokens = 200 })
		l.send(t.Context(), "b", nil)
		l.expect("modelled@1")
		time.Sleep(4 * time.Second)
		l.scheduler.Tick()
		l.expect()
		time.Sleep(2 * time.Second)
		l.scheduler.Tick()
		l.expect("b@1")
		l.send(t.Context(), "c", nil)
		l.expect()
		time.Sleep(61 * time.Second)
		l.scheduler.Tick()
		l.expect("c@1")
	})
}

// TestAnOldOverlapIsLookedUpAgain: after ten seconds of waiting, and not before.
func TestAnOldOverlapIsLookedUpAgain(t *testing.T) {
	refreshed := 0
	members := fleet(2)
	change := func(o *Options) {
		o.Refresh = func(r *Request) {
			refreshed++
			r.Members, r.Hits = members, []index.Hit{{Member: 1, Hits: hits(3, 0, 0, 0)}}
		}
	}
	inLine(t, 2, change, func(t *testing.T, l *line) {
		l.members = members
		for _, id := range []string{"a", "b", "soon", "late"} {
			l.send(t.Context(), id, nil)
		}
		l.expect("a@1", "b@2")
		time.Sleep(9 * time.Second)
		l.scheduler.Free("a")
		l.expect("soon@1")
		time.Sleep(time.Second)
		l.scheduler.Free("b")
		synctest.Wait()
		o := <-l.outcomes
		if o.id != "late" || o.err != nil || o.result.Hits != hits(3, 0, 0, 0) || o.result.Waited != 10*time.Second {
			t.Errorf("%+v", o)
		}
		if got := l.scheduler.Stats().Refreshed; got != 1 || refreshed != 1 {
			t.Errorf("%d refreshed, %d calls", got, refreshed)
		}
	})
}

// TestHitsFollowTheirWorkersWhileARequestWaits: to the list of members that counts
// when it gets its worker.
func TestHitsFollowTheirWorkersWhileARequestWaits(t *testing.T) {
	current := &index.Members{List: []index.Member{{Worker: kv.Worker{ID: 2}}, {Worker: kv.Worker{ID: 3}}}}
	inLine(t, 2, func(o *Options) { o.Members = func() *index.Members { return current } }, func(t *testing.T, l *line) {
		l.members = current
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@2", "b@3")
		l.send(t.Context(), "c", func(r *Request) { r.Hits = []index.Hit{{Member: 1, Hits: hits(2, 0, 0, 0)}} })
		current = &index.Members{List: current.List[1:]}
		l.scheduler.Tick()
		l.expect()
		l.scheduler.Free("b")
		synctest.Wait()
		o := <-l.outcomes
		if o.err != nil || o.result.Worker.ID != 3 || o.result.Member != 0 || o.result.Members != current || o.result.Hits != hits(2, 0, 0, 0) {
			t.Errorf("%+v; want worker 3 with its two blocks", o)
		}
	})
}

// TestAnArrivalFindsWhatHasExpired: those that wait longer get the place.
func TestAnArrivalFindsWhatHasExpired(t *testing.T) {
	inLine(t, 1, func(o *Options) { o.Load.Expiry = time.Minute }, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1")
		time.Sleep(61 * time.Second)
		l.send(t.Context(), "c", nil)
		l.expect("b@1")
		l.scheduler.Free("b")
		l.expect("c@1")
	})
}

// TestBestCachedIsOfAWorkerThatMayServe: the best among those that may serve.
func TestBestCachedIsOfAWorkerThatMayServe(t *testing.T) {
	s := newScheduler(t, func(o *Options) {
		o.Worker = func(w kv.Worker) WorkerConfig { return WorkerConfig{Taints: []string{fmt.Sprint(w.ID)}} }
	})
	list := []index.Hit{{Member: 0, Hits: hits(60, 0, 0, 0)}, {Member: 1, Hits: hits(1, 0, 0, 0)}}
	for _, c := range []struct {
		r    Request
		want int
	}{
		{Request{Tokens: 1024, Hits: list}, 960},
		{Request{Tokens: 1024, Hits: list, Pinned: &kv.Worker{ID: 2}}, 16},
		{Request{Tokens: 1024, Hits: list, Pinned: &kv.Worker{ID: 3}}, 0},
		{Request{Tokens: 1024, Hits: list, Allowed: ids(2, 3)}, 16},
		{Request{Tokens: 1024, Hits: list, RequiredTaints: []string{"2"}}, 16},
		{Request{Tokens: 512, Hits: list}, 512},
		{Request{Tokens: 512}, 0},
		{Request{Tokens: 512, Overlaps: []Overlap{{0, 1.5}}}, 24},
	} {
		c.r.BlockSize, c.r.Members = 16, fleet(3)
		s.setMembers(c.r.Members)
		if got := s.bestCached(&c.r); got != c.want {
			t.Errorf("%+v: %d, want %d", c.r, got, c.want)
		}
	}
}
