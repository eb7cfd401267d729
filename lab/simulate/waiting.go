package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/estimate"
)

// waiting are the requests of a router that wait in its queue. Each has a goroutine that the decision
// blocks. The cluster's goroutine waits for it whenever the decision has been made, so that one
// of both runs at a time, and one seed has one result.
type waiting struct {
	ctx     context.Context
	leave   context.CancelFunc
	count   int
	decided chan decided // with room for all that have a goroutine
}

// decided is a request whose worker is known.
type decided struct {
	query *decide.Query
	match decide.Match
	err   error
	then  func(kv.Worker)
}

// maxWaiting bounds the requests that wait in a router.
const maxWaiting = 1 << 16

func newWaiting(p *policy.Policy) *waiting {
	if p.Queue == nil {
		return nil
	}
	w := &waiting{decided: make(chan decided, maxWaiting)}
	w.ctx, w.leave = context.WithCancel(context.Background())
	return w
}

// route decides where a prompt goes, and calls then with the worker: at once, or when the prompt has waited. id
// is unique among all attempts.
func (r *router) route(id string, p *prompt, then func(kv.Worker)) {
	r.current = p
	q := &decide.Query{ID: id, UpdateStates: true, Hashed: &decide.Hashed{Tokens: p.tokens, Locals: p.locals[:p.promptBlocks], Sequence: p.sequence[:p.promptBlocks]}}
	if r.waiting == nil {
		m, err := r.decide.FindBestMatchDetails(context.Background(), q)
		r.finish(decided{q, m, err, then})
		return
	}
	w, waits, at := r.waiting, make(chan struct{}), make(chan decided)
	q.Waits = func() { close(waits) }
	go func() {
		m, err := r.decide.FindBestMatchDetails(w.ctx, q)
		d := decided{q, m, err, then}
		select {
		case <-waits:
			w.decided <- d
		default:
			at <- d
		}
	}()
	select {
	case <-waits:
		w.count++
	case d := <-at:
		r.finish(d)
	}
}

// collect finishes the requests that have got a worker since they waited, in the order of the decisions.
func (r *router) collect() {
	for n := r.waiting.count - r.scheduler.PendingCount(); n > 0; n = r.waiting.count - r.scheduler.PendingCount() {
		var all []decided
		for range n {
			all = append(all, <-r.waiting.decided)
		}
		slices.SortFunc(all, func(a, b decided) int { return cmp.Compare(a.match.Booking, b.match.Booking) })
		r.waiting.count -= n
		for _, d := range all {
			r.finish(d)
		}
	}
}

// close ends the waits of a run that is over.
func (r *router) close() {
	if r.waiting == nil {
		return
	}
	r.waiting.leave()
	for range r.waiting.count {
		<-r.waiting.decided
	}
}

// finish books a decided request with the estimator, and sends it off.
func (r *router) finish(d decided) {
	if d.err != nil {
		r.cluster.fail(fmt.Errorf("request %s: %w", d.query.ID, d.err))
		return
	}
	if r.estimator != nil && d.match.Booked {
		r.estimator.Booked(&estimate.Booking{ID: d.query.ID, Worker: d.match.Worker, Tokens: d.query.Len(), BlockSize: r.cluster.scenario.Hardware.BlockSize, Hits: d.match.Hits})
	}
	r.modes[modeOf(d.match.Mode)]++
	d.then(d.match.Worker)
}
