package schedule

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// waits is an estimator for tests: a worker's wait is its pending tokens, and base is the rest of its
// price. The test changes base.
type waits struct{ base map[kv.WorkerID]float64 }

func (w *waits) Prices(in *Selection, prices []price.Price) (why string, ok bool) {
	for k := range prices {
		m := in.At(k)
		wait := float64(in.Loads.PrefillTokens[m])
		prices[k] = price.Price{Wait: wait, TTFT: wait + w.base[in.Members.List[m].Worker.ID]}
	}
	return "", true
}

// inPricedLine is inLine with prices and a longest wait of 5 seconds.
func inPricedLine(t *testing.T, base map[kv.WorkerID]float64, change func(*Options), test func(*testing.T, *line)) {
	inLine(t, len(base), func(o *Options) {
		o.Config.Price, o.Estimator, o.Queue.MaxWait = true, &waits{base}, 5*time.Second
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

// TestAFullQueueHoldsNobody: a request that has a free worker is not refused.
func TestAFullQueueHoldsNobody(t *testing.T) {
	base := map[kv.WorkerID]float64{1: 1, 2: 5000}
	inPricedLine(t, base, func(o *Options) { o.Queue.MaxPending = 1 }, func(t *testing.T, l *line) {
		for _, id := range []string{"a", "b", "c"} {
			l.send(t.Context(), id, nil)
		}
		l.expect("a@1", "c@1")
		l.scheduler.Free("a")
		l.expect()
		l.scheduler.Free("c")
		l.expect("b@1")
		if s := l.scheduler.Stats().Queue; s.RejectedRequests != 0 || s.Pending != 0 {
			t.Errorf("%+v", s)
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
