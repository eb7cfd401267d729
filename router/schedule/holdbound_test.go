package schedule

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// counted counts the decisions that waits prices.
type counted struct {
	waits
	decisions int
}

func (c *counted) Prices(in *Selection, prices []price.Price) (why string, ok bool) {
	c.decisions++
	return c.waits.Prices(in, prices)
}

// TestADispatchPricesFewRequests: worker 2 becomes free, and every request had better wait for worker 1. A
// release prices some of them under the lock, and each tick the next ones.
func TestADispatchPricesFewRequests(t *testing.T) {
	c := &counted{waits: waits{map[kv.WorkerID]float64{1: 1, 2: 1e7}}}
	inLine(t, 2, func(o *Options) {
		o.Config.Price, o.Estimator, o.Queue.MaxWait = true, c, time.Hour
	}, func(t *testing.T, l *line) {
		for w, id := range []string{"x", "y"} {
			l.send(t.Context(), id, func(r *Request) { r.Pinned = pin(kv.Worker{ID: kv.WorkerID(w + 1)}) })
		}
		l.expect("x@1", "y@2")
		ctx, leave := context.WithCancel(t.Context())
		const waiting = 300
		for i := range waiting {
			go func() {
				_, err := l.scheduler.Schedule(ctx, l.request(fmt.Sprint(i), nil))
				if !errors.Is(err, context.Canceled) {
					t.Errorf("request %d: %v", i, err)
				}
			}()
		}
		synctest.Wait()
		step := func(do func(), held int) {
			t.Helper()
			c.decisions = 0
			do()
			if got := l.scheduler.Stats().Queue; c.decisions > 2*maxRepriced || got.Lanes > 2 || l.scheduler.moved != held {
				t.Errorf("%d decisions, %d requests newly held, want %d; %+v", c.decisions, l.scheduler.moved, held, got)
			}
		}
		step(func() { l.scheduler.Free("y") }, maxRepriced)
		for range waiting/maxRepriced - 1 {
			step(l.scheduler.Tick, maxRepriced)
		}
		step(l.scheduler.Tick, waiting%maxRepriced)
		step(l.scheduler.Tick, 0)
		if got := l.scheduler.PendingCount(); got != waiting {
			t.Errorf("%d wait, want all %d", got, waiting)
		}
		leave()
		synctest.Wait()
	})
}
