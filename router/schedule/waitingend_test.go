package schedule

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// TestACallerThatLeavesIsForgotten: its request is taken out; the others keep
// their turns.
func TestACallerThatLeavesIsForgotten(t *testing.T) {
	inLine(t, 1, nil, func(t *testing.T, l *line) {
		ctx, leave := context.WithCancel(t.Context())
		l.send(t.Context(), "a", nil)
		l.send(ctx, "gone", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1")
		leave()
		synctest.Wait()
		if o := <-l.outcomes; o.id != "gone" || !errors.Is(o.err, context.Canceled) {
			t.Errorf("%s: %v", o.id, o.err)
		}
		l.scheduler.Free("a")
		l.expect("b@1")
		if got := l.scheduler.Stats(); got.Queue.Retracted != 1 || got.RolledBack != 0 || got.Load.Added != 2 {
			t.Errorf("stats %+v", got)
		}
		if _, err := l.scheduler.Schedule(ctx, l.request("late", nil)); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that had left before: %v", err)
		}
	})
}

// TestAWorkerGivenToACallerThatLeftIsTakenBack: and goes to the next that waits.
func TestAWorkerGivenToACallerThatLeftIsTakenBack(t *testing.T) {
	inLine(t, 1, nil, func(t *testing.T, l *line) {
		s := l.scheduler
		l.send(t.Context(), "a", nil)
		l.expect("a@1")
		// What Schedule does, step by step, so that the caller leaves after the
		// worker was given.
		w, _, err := s.decideOrQueue(l.request("gone", nil))
		if err != nil || w == nil {
			t.Fatalf("%v, %v", w, err)
		}
		l.send(t.Context(), "b", nil)
		s.Free("a")
		<-w.settled
		l.expect()
		s.retract(w)
		l.expect("b@1")
		if got := s.Stats(); got.RolledBack != 1 || got.Load.Requests != 1 {
			t.Errorf("stats %+v", got)
		}
	})
}

// TestWaitingEndsWithTheErrorOfNobodyLeft: when the workers go, those that wait
// are told.
func TestWaitingEndsWithTheErrorOfNobodyLeft(t *testing.T) {
	current := fleet(1)
	inLine(t, 1, func(o *Options) { o.Members = func() *index.Members { return current } }, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.send(t.Context(), "b", nil)
		l.expect("a@1")
		current = fleet(0)
		l.scheduler.Tick()
		synctest.Wait()
		if o := <-l.outcomes; o.id != "b" || !errors.Is(o.err, ErrNoEndpoints) {
			t.Errorf("%s: %v", o.id, o.err)
		}
	})
}

// TestAnErrorForACallerThatLeftIsNotRolledBack: there is nothing to undo.
func TestAnErrorForACallerThatLeftIsNotRolledBack(t *testing.T) {
	current := fleet(1)
	inLine(t, 1, func(o *Options) { o.Members = func() *index.Members { return current } }, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.expect("a@1")
		w, _, err := l.scheduler.decideOrQueue(l.request("gone", nil))
		if err != nil {
			t.Fatal(err)
		}
		current = fleet(0)
		l.scheduler.Tick()
		<-w.settled
		l.scheduler.retract(w)
		if got := l.scheduler.Stats(); got.RolledBack != 0 || got.NoEndpoints != 1 {
			t.Errorf("stats %+v", got)
		}
	})
}

// TestAFullQueueTurnsRequestsAway: with what waits and what may.
func TestAFullQueueTurnsRequestsAway(t *testing.T) {
	inLine(t, 1, func(o *Options) { o.Queue.Limits.Tokens = 150 }, func(t *testing.T, l *line) {
		for _, id := range []string{"a", "b", "c"} {
			l.send(t.Context(), id, nil)
		}
		l.expect("a@1")
		_, err := l.scheduler.Schedule(t.Context(), l.request("d", nil))
		var rejected *queue.Rejection
		if !errors.Is(err, queue.ErrRejected) || !errors.As(err, &rejected) {
			t.Fatalf("%v", err)
		}
		if want := (queue.Rejection{Class: "default", Kind: queue.LimitTokens, Current: 202, Limit: 150}); *rejected != want {
			t.Errorf("%+v, want %+v", *rejected, want)
		}
		l.scheduler.Free("a")
		l.expect("b@1")
		l.scheduler.Free("b")
		l.expect("c@1")
	})
}

// TestAnOverloadedFleetRefusesWhoArrives: busy thresholds are not the queue's. Who waits
// already goes on waiting until a worker is there again.
func TestAnOverloadedFleetRefusesWhoArrives(t *testing.T) {
	limit := int64(50)
	inLine(t, 1, func(o *Options) { o.Busy.PrefillTokens = &limit }, func(t *testing.T, l *line) {
		l.send(t.Context(), "a", nil)
		l.expect("a@1")
		if _, err := l.scheduler.Schedule(t.Context(), l.request("b", nil)); !errors.Is(err, ErrAllOverloaded) {
			t.Errorf("%v", err)
		}
		if err := l.scheduler.SetBusy(BusyThresholds{}); err != nil {
			t.Fatal(err)
		}
		l.send(t.Context(), "b", nil)
		l.expect()
		if err := l.scheduler.SetBusy(BusyThresholds{PrefillTokens: &limit}); err != nil {
			t.Fatal(err)
		}
		l.expect()
		if _, err := l.scheduler.Schedule(t.Context(), l.request("c", nil)); !errors.Is(err, ErrAllOverloaded) {
			t.Errorf("beside one that waits: %v", err)
		}
		l.scheduler.Tick()
		l.expect()
		l.scheduler.Free("a")
		l.expect("b@1")
	})
}

// TestOneReportOfOverloadThrowsNobodyOut: requests that wait, pinned ones too, survive a
// report by which every worker is overloaded, and get their workers after the next one.
func TestOneReportOfOverloadThrowsNobodyOut(t *testing.T) {
	most := 0.9
	inLine(t, 2, func(o *Options) {
		o.Busy.DecodeBlocks = &most
		o.Worker = func(kv.Worker) WorkerConfig { return WorkerConfig{MaxBatchedTokens: 100, TotalBlocks: 1000} }
	}, func(t *testing.T, l *line) {
		for _, id := range []string{"a", "b"} {
			l.send(t.Context(), id, nil)
		}
		l.expect("a@1", "b@2")
		l.send(t.Context(), "c", nil)
		l.send(t.Context(), "pinned", func(r *Request) { r.Pinned = &kv.Worker{ID: 2} })
		l.expect()
		report := func(used uint64) {
			for w := range kv.WorkerID(2) {
				l.scheduler.ReportUsedBlocks(kv.Worker{ID: w + 1}, used)
			}
			l.scheduler.Tick()
		}
		report(950)
		l.expect()
		l.scheduler.Free("a") // an end wakes who waits, and the worker is still overloaded
		l.scheduler.Free("b")
		l.expect()
		report(10)
		l.expect("c@1", "pinned@2")
	})
}

// TestWhoMayHaveLeftIsBookedProvisionally: such a request expires soon when it has
// waited and nothing is heard of it, and not when it got its worker at once.
func TestWhoMayHaveLeftIsBookedProvisionally(t *testing.T) {
	inLine(t, 1, func(o *Options) { o.Load = load.Options{Provisional: 5 * time.Second} }, func(t *testing.T, l *line) {
		waits := 0
		may := func(r *Request) { r.Provisional, r.Waits = true, func() { waits++ } }
		l.send(t.Context(), "at once", may)
		l.expect("at once@1")
		if waits != 0 {
			t.Error("told to wait, and got its worker at once")
		}
		l.send(t.Context(), "gone", may)
		if waits != 1 {
			t.Errorf("told to wait %d times", waits)
		}
		l.send(t.Context(), "next", nil)
		if err := l.scheduler.MarkPrefillCompleted("at once"); err != nil {
			t.Fatal(err)
		}
		l.expect("gone@1")
		time.Sleep(6 * time.Second)
		l.scheduler.Tick()
		l.expect("next@1")
		if s := l.scheduler.Stats().Load; s.Unheard != 1 || s.Expired != 1 || s.Requests != 2 {
			t.Errorf("stats %+v", s)
		}
	})
}
