package decide

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// withoutEvents is approximate mode with a TTL of a minute.
func withoutEvents(_ *Options, c *config.Config, _ *schedule.Options) {
	c.UseKVEvents, c.RouterTTLSecs = false, 60
}

// Without events a booked decision is what is known of the worker, for as long as the
// TTL; looking around is no decision.
func TestDecisionsAreRememberedWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, withoutEvents)
		q := &Query{ID: "r", Tokens: tokens(1, 70)}
		s.best(q)
		if n := s.overlap(q, 1); n != 0 {
			t.Errorf("a decision without update_states left %d blocks", n)
		}
		q.UpdateStates = true
		s.best(q)
		s.router.Free("r")
		if n := s.overlap(q, 1); n != 4 {
			t.Errorf("%d blocks on the chosen worker, want 4", n)
		}
		<-time.After(30 * time.Second)
		q.ID = "again"
		if m := s.best(q); m.Worker != worker(1) || m.Hits[kv.TierDevice] != 4 {
			t.Errorf("the second request: %+v", m)
		}
		<-time.After(45 * time.Second)
		s.router.Tick()
		if n := s.overlap(q, 1); n != 4 {
			t.Errorf("%d blocks 45 s after the last decision, want 4", n)
		}
		<-time.After(16 * time.Second)
		s.router.Tick()
		if n := s.overlap(q, 1); n != 0 {
			t.Errorf("%d blocks after the TTL", n)
		}
		if g, ok := s.router.GuessStats(); !ok || g.Recorded != 2 || g.Expired != 4 {
			t.Errorf("stats %+v, %t", g, ok)
		}
	})
}

// What was remembered of a worker goes with it.
func TestRememberedDecisionsGoWithTheirWorker(t *testing.T) {
	s := newSetup(t, withoutEvents)
	q := &Query{Tokens: tokens(1, 64)}
	if err := s.router.RecordRoutingDecision(q, worker(2)); err != nil {
		t.Fatal(err)
	}
	if n := s.overlap(q, 2); n != 4 {
		t.Errorf("%d blocks, want 4", n)
	}
	s.forget(2)
	s.router.Tick()
	if g, _ := s.router.GuessStats(); g.Blocks != 0 || g.Removed != 4 {
		t.Errorf("stats after the worker went: %+v", g)
	}
	s.member(2, 0)
	if n := s.overlap(q, 2); n != 0 {
		t.Errorf("%d blocks of a worker that came back empty", n)
	}
	if err := s.router.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.router.RecordRoutingDecision(q, worker(2)); !errors.Is(err, approx.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	s.best(q)
}

// Beside events a decision holds until they can have come: what is known is the larger
// of both, and what is guessed to be on the device counts there alone.
func TestPredictedDecisionsStandInForEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ttl := 2.0
		s := newSetup(t, func(_ *Options, c *config.Config, _ *schedule.Options) { c.RouterPredictedTTLSecs = &ttl })
		q := &Query{ID: "r", Tokens: tokens(1, 64), UpdateStates: true}
		s.store(kv.WorkerOwner(worker(1)), kv.TierDevice, q, 0, 1)
		s.store(kv.WorkerOwner(worker(1)), kv.TierHost, q, 1, 2)
		if m := s.best(q); m.Worker != worker(1) {
			t.Fatalf("match %+v", m)
		}
		e, err := s.estimate(q, worker(1))
		if err != nil || e.Hits[kv.TierDevice] != 4 || e.Hits[kv.TierHost] != 0 {
			t.Errorf("right after the decision: %+v, %v", e, err)
		}
		<-time.After(2200 * time.Millisecond)
		s.router.Tick()
		if e, err = s.estimate(q, worker(1)); err != nil || e.Hits[kv.TierDevice] != 1 || e.Hits[kv.TierHost] != 1 {
			t.Errorf("after the TTL: %+v, %v; want what events told", e, err)
		}
	})
}

func TestDecisionsAreNotRememberedWhereEventsTell(t *testing.T) {
	for name, f := range map[string]change{
		"events": func(*Options, *config.Config, *schedule.Options) {},
		"no credit for the device": func(_ *Options, c *config.Config, _ *schedule.Options) {
			c.UseKVEvents, c.OverlapScoreCredit = false, 0
		},
	} {
		s := newSetup(t, f)
		q := &Query{ID: "r", Tokens: tokens(1, 64), UpdateStates: true}
		s.best(q)
		if err := s.router.RecordRoutingDecision(q, worker(1)); !errors.Is(err, ErrNotRecorded) {
			t.Errorf("%s: %v", name, err)
		}
		if _, ok := s.router.GuessStats(); ok || s.overlap(q, 1) != 0 {
			t.Errorf("%s: a decision is remembered", name)
		}
	}
}

// A worker that starts anew is back before anybody has looked, and what was remembered
// of its former life is gone all the same; what comes after is remembered.
func TestForgottenWorkerStartsFromNothing(t *testing.T) {
	for name, afresh := range map[string]func(s *setup){
		"told between": func(s *setup) {
			s.forget(2)
			s.router.ForgetWorker(worker(2))
			s.member(2, 0)
		},
		"told after": func(s *setup) {
			s.forget(2)
			s.member(2, 0)
			s.router.ForgetWorker(worker(2))
		},
	} {
		s := newSetup(t, withoutEvents)
		q := &Query{Tokens: tokens(1, 64)}
		for range 2 {
			if err := s.router.RecordRoutingDecision(q, worker(2)); err != nil {
				t.Fatal(err)
			}
			if n := s.overlap(q, 2); n != 4 {
				t.Errorf("%s: %d blocks of what was recorded, want 4", name, n)
			}
			afresh(s)
			if n := s.overlap(q, 2); n != 0 {
				t.Errorf("%s: %d blocks of its former life", name, n)
			}
		}
	}
	newSetup(t).router.ForgetWorker(worker(1)) // where nothing is remembered
}

// A decision that was at hand when its worker went is not held against the worker when
// it comes back empty.
func TestDecisionForAWorkerThatHasGoneIsNotRemembered(t *testing.T) {
	s := newSetup(t, withoutEvents)
	q := &Query{Tokens: tokens(1, 64)}
	s.forget(2)
	if err := s.router.RecordRoutingDecision(q, worker(2)); !errors.Is(err, ErrUnknownWorker) {
		t.Errorf("a decision for a worker that has gone: %v", err)
	}
	var w scratch
	w.blocks.hash(q, s.blockSize, false)
	s.router.predict(&w, worker(2))
	s.member(2, 0)
	if n := s.overlap(q, 2); n != 0 || s.router.Unremembered() != 1 {
		t.Errorf("%d blocks of a worker that came back empty, %d decisions not remembered; want 0, 1", n, s.router.Unremembered())
	}
}

// Without events a dump is what the decisions let expect; beside events it is what
// events told.
func TestDumpIsWhatDecisionsGoBy(t *testing.T) {
	ttl := 2.0
	for name, c := range map[string]struct {
		change change
		want   int
	}{
		"without events": {withoutEvents, 4},
		"beside events":  {func(_ *Options, c *config.Config, _ *schedule.Options) { c.RouterPredictedTTLSecs = &ttl }, 2},
	} {
		s := newSetup(t, c.change)
		q := &Query{ID: "r", Tokens: tokens(1, 64), UpdateStates: true}
		s.store(kv.WorkerOwner(worker(1)), kv.TierDevice, q, 0, 2)
		s.best(q)
		blocks := 0
		s.router.DumpEvents(func(e *kvevent.RouterEvent) bool {
			blocks += len(e.Blocks)
			return true
		})
		if blocks != c.want {
			t.Errorf("%s: %d blocks are dumped, want %d", name, blocks, c.want)
		}
	}
}

// Decisions, ends of requests, workers that come and go, and time that passes do not
// get in one another's way, and nothing is left on the account.
func TestDecisionsFromManyGoroutines(t *testing.T) {
	s := newSetup(t, withoutEvents)
	var running sync.WaitGroup
	for g := range 4 {
		running.Go(func() {
			for i := range 200 {
				id := fmt.Sprint(g, " ", i)
				q := &Query{ID: id, Tokens: tokens(i%7, 64), UpdateStates: true}
				m, err := s.router.FindBestMatchDetails(t.Context(), q)
				if err != nil || !m.Booked {
					t.Errorf("%s: %+v, %v", id, m, err)
				}
				if i%3 == 0 {
					s.router.Tick()
				}
				// Its worker may have gone with it meanwhile.
				s.router.Free(id)
			}
		})
	}
	running.Go(func() {
		for range 200 {
			if err := s.index.SetMember(worker(3), 0, true); err != nil {
				t.Error(err)
			}
			if _, err := s.router.Overlaps(&Query{Tokens: tokens(1, 64)}); err != nil {
				t.Error(err)
			}
			if err := s.index.SetMember(worker(3), 0, false); err != nil {
				t.Error(err)
			}
			s.scheduler.RemoveWorker(worker(3))
		}
	})
	running.Wait()
	s.router.Tick()
	if n := s.scheduler.Stats().Load.Requests; n != 0 {
		t.Errorf("%d requests are left", n)
	}
	if g, _ := s.router.GuessStats(); g.Recorded == 0 || g.Workers > 2 {
		t.Errorf("stats %+v", g)
	}
}
