package decide

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// estimator notes what it is asked.
type estimator struct {
	asked [][3]int
	err   error
}

func (e *estimator) PredictPrefillDuration(batch, effectiveISL, prefix int) (time.Duration, error) {
	e.asked = append(e.asked, [3]int{batch, effectiveISL, prefix})
	return time.Duration(effectiveISL) * time.Second, e.err
}

// The prefill of a booked request fades at the pace that the estimator predicts from
// a batch of one, the tokens to compute and the cached prefix. Its error is a warning.
func TestPrefillLoadEstimator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &estimator{}
		s := newSetup(t, func(o *Options, _ *config.Config, _ *schedule.Options) { o.PrefillLoadEstimator = e })
		q := &Query{ID: "r1", Tokens: tokens(1, 40), UpdateStates: true}
		s.store(kv.WorkerOwner(worker(1)), kv.TierDevice, q, 0, 1)
		s.best(q)
		if want := [][3]int{{1, 24, 16}}; !slices.Equal(e.asked, want) {
			t.Errorf("asked %v, want %v", e.asked, want)
		}
		<-time.After(12 * time.Second)
		loads, err := s.router.GetPotentialLoads(&Query{Tokens: tokens(900, 8)})
		if err != nil || loads[0].PrefillTokens != 12+8 {
			t.Errorf("after half of the prefill: %+v, %v", loads, err)
		}
		s.router.Free("r1")
		add := func(id string, cached int) {
			if err := s.router.AddRequest(&Query{ID: id, Tokens: tokens(1, 40)}, worker(2), cached); err != nil {
				t.Error(err)
			}
		}
		e.asked = nil
		add("r2", 30)
		add("r3", 40)
		add("r4", 99)
		e.err = errors.New("no model")
		add("r5", 0)
		if want := [][3]int{{1, 10, 30}, {1, 40, 0}}; !slices.Equal(e.asked, want) {
			t.Errorf("asked %v, want %v: nothing to compute is not asked for", e.asked, want)
		}
		if n := s.logged.FilterMessageSnippet("prefill duration").FilterLevelExact(zapcore.WarnLevel).Len(); n != 1 {
			t.Errorf("%d warnings of a failed prediction", n)
		}
		if n := s.scheduler.Stats().Load.Requests; n != 4 {
			t.Errorf("%d requests are booked, want 4", n)
		}
	})
}

// A request that has waited for long goes by what workers have when it is its turn, and
// one whose caller leaves is not booked.
func TestLongWaitsAreLookedUpAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *setup
		s = newSetup(t, func(_ *Options, _ *config.Config, o *schedule.Options) {
			o.Queue.ThresholdTokens = new(int64)
			o.Refresh = func(r *schedule.Request) { s.router.Refresh(r) }
		})
		for id := range uint64(2) {
			s.best(&Query{ID: fmt.Sprint("busy", id), Tokens: tokens(900, 16), UpdateStates: true})
		}
		q := &Query{ID: "r", Tokens: tokens(1, 64), UpdateStates: true}
		got := make(chan Match, 1)
		go func() { got <- s.best(q) }()
		leave, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := s.router.FindBestMatchDetails(leave, &Query{ID: "gone", Tokens: tokens(1, 64), UpdateStates: true})
			left <- err
		}()
		synctest.Wait()
		if n := s.router.PendingCount(); n != 2 || s.router.PendingTokens() != 128 {
			t.Errorf("%d requests wait, want 2", n)
		}
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that left: %v", err)
		}
		<-time.After(11 * time.Second)
		s.store(kv.WorkerOwner(worker(2)), kv.TierDevice, q, 0, 3)
		for id := range uint64(2) {
			s.router.Free(fmt.Sprint("busy", id))
		}
		if m := <-got; m.Worker != worker(2) || m.Hits[kv.TierDevice] != 3 || m.Waited < 11*time.Second || !m.Booked {
			t.Errorf("after the wait: %+v", m)
		}
		if s.router.Free("gone") {
			t.Error("the request of the caller that left is booked")
		}
	})
}
