package decide

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// silentTwo makes worker 2 one that publishes no events while on is true.
func silentTwo(on *atomic.Bool) change {
	on.Store(true)
	return func(o *Options, _ *config.Config, _ *schedule.Options) {
		o.Silent = func(w kv.Worker) bool { return on.Load() && w == worker(2) }
	}
}

// Of two workers the one without events is predicted from decisions for router_ttl_secs,
// the one with events is not.
func TestWorkersWithoutEventsArePredicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		s := newSetup(t, silentTwo(&silent))
		q := &Query{ID: "r", Tokens: tokens(1, 64), UpdateStates: true}
		if m := s.best(q); m.Worker != worker(1) || s.overlap(q, 1) != 0 {
			t.Errorf("%d blocks are predicted for %s, which publishes events", s.overlap(q, 1), m.Worker)
		}
		q = &Query{ID: "r2", Tokens: tokens(1, 64), UpdateStates: true, Allowed: map[kv.WorkerID]struct{}{2: {}}}
		if m := s.best(q); m.Worker != worker(2) || m.OverlapBlocks() != 0 {
			t.Errorf("first match %+v", m)
		}
		free := &Query{Tokens: tokens(1, 64)}
		if m := s.best(free); m.Worker != worker(2) || m.OverlapBlocks() != 4 {
			t.Errorf("second match %+v, want 4 blocks of worker 2", m)
		}
		if err := s.router.RecordRoutingDecision(free, worker(1)); !errors.Is(err, ErrNotRecorded) {
			t.Errorf("a decision for a worker with events: %v", err)
		}
		<-time.After(119 * time.Second)
		s.router.Tick()
		if n := s.overlap(free, 2); n != 4 {
			t.Errorf("%d blocks before the TTL, want 4", n)
		}
		<-time.After(2 * time.Second)
		s.router.Tick()
		if n := s.overlap(free, 2); n != 0 {
			t.Errorf("%d blocks after the TTL", n)
		}
	})
}

// A worker that begins to publish events loses the predictions, and gets no new ones.
func TestEventsEndPredictions(t *testing.T) {
	var silent atomic.Bool
	s := newSetup(t, silentTwo(&silent))
	q := &Query{Tokens: tokens(1, 64)}
	if err := s.router.RecordRoutingDecision(q, worker(2)); err != nil || s.overlap(q, 2) != 4 {
		t.Fatalf("%d blocks, %v", s.overlap(q, 2), err)
	}
	var w scratch
	w.blocks.hash(q, s.blockSize, false)
	before := s.router.predictorOf(worker(2))
	silent.Store(false)
	s.router.EventsBegin(worker(2))
	if n := s.overlap(q, 2); n != 0 {
		t.Errorf("%d blocks of a worker that publishes events", n)
	}
	// A decision that was on its way.
	if err := s.router.record(before, &w, worker(2)); !errors.Is(err, ErrUnknownWorker) || s.overlap(q, 2) != 0 {
		t.Errorf("%d blocks of a late decision, %v", s.overlap(q, 2), err)
	}
	silent.Store(true)
	if err := s.router.RecordRoutingDecision(q, worker(2)); err != nil || s.overlap(q, 2) != 4 {
		t.Errorf("%d blocks after the worker fell silent again, %v", s.overlap(q, 2), err)
	}
	s.forget(2)
	s.router.Tick()
	if g, ok := s.router.GuessStats(); !ok || g.Blocks != 0 || g.Recorded != 2 {
		t.Errorf("stats after the worker left: %+v", g)
	}
}

// With router_predicted_ttl_secs each worker has its own time.
func TestSilentWorkersKeepTheirTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		ttl := 2.0
		s := newSetup(t, silentTwo(&silent), func(_ *Options, c *config.Config, _ *schedule.Options) { c.RouterPredictedTTLSecs = &ttl })
		q := &Query{Tokens: tokens(1, 64)}
		for id := range uint64(2) {
			if err := s.router.RecordRoutingDecision(q, worker(1+id)); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(3 * time.Second)
		s.router.Tick()
		if one, two := s.overlap(q, 1), s.overlap(q, 2); one != 0 || two != 4 {
			t.Errorf("%d and %d blocks after 3 s, want 0 and 4", one, two)
		}
	})
}

// In other modes than kv nothing is predicted beside events.
func TestSilentWorkersInRoundRobin(t *testing.T) {
	var silent atomic.Bool
	s := newSetup(t, silentTwo(&silent), func(_ *Options, c *config.Config, _ *schedule.Options) { c.RouterMode = config.ModeRoundRobin })
	if err := s.router.RecordRoutingDecision(&Query{Tokens: tokens(1, 64)}, worker(2)); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("a decision of round-robin: %v", err)
	}
}
