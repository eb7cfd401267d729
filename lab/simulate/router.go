package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/lab/simulate/report"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/replica"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// router is one production router: index, scheduler, estimator and decision.
type router struct {
	cluster   *cluster
	index     *index.Index
	scheduler *schedule.Scheduler
	decide    *decide.Router
	estimator *estimate.Estimator // nil unless the policy is priced
	oracle    *oracle             // nil unless the policy is the oracle
	// session is that of the request that is decided, and current its prompt.
	current *prompt
	modes   map[string]int
	// replica shares the bookings with the other routers; nil unless the scenario is synced.
	replica *replica.State
	// sent is when a message has left, 0 for never.
	sent time.Duration
	// waiting is nil unless the policy has a queue.
	waiting *waiting
	config  config.Config
	log     decisions.Log // of explained decisions
}

var _ policy.View = (*router)(nil)
var _ decide.Observer = (*router)(nil)

func newRouter(c *cluster, number int) (*router, error) {
	r := &router{cluster: c, modes: make(map[string]int), waiting: newWaiting(&c.policy)}
	var err error
	if r.index, err = index.New(index.Options{}); err != nil {
		return nil, err
	}
	r.config = config.Default()
	conf := &r.config
	conf.RouterTrackOutputBlocks = true
	if c.policy.Priced {
		conf.Score = config.ScorePrice
	}
	s := schedule.Options{Config: conf.Schedule(), Load: load.Options{Now: c.clock.Wall, Expiry: time.Hour},
		Members: r.index.Members, Worker: func(kv.Worker) schedule.WorkerConfig {
			return schedule.WorkerConfig{TotalBlocks: uint64(c.scenario.Hardware.Blocks), MaxBatchedTokens: uint64(c.scenario.Hardware.Budget)}
		}}
	s.Config.Seed = c.seed*64 + uint64(number) + 1
	if c.scenario.Synced {
		r.replica = replica.NewState("simulated", uint64(number)+1)
		s.Load.Journal = r.replica.Open(sharedModel)
	}
	p := c.policy
	if p.Configure != nil {
		p.Configure(&s.Config)
	}
	if p.Selector != nil {
		s.Selector = p.Selector(policy.Context{View: r, Seed: s.Config.Seed, TokensPerSecond: c.tokensPerSecond()})
	}
	if p.Priced {
		if r.estimator, err = estimate.New(estimate.Options{Now: c.clock.Wall}); err != nil {
			return nil, err
		}
		s.Estimator, s.Load.Ended = r.estimator, r.estimator.Dropped
		if p.Oracle {
			r.oracle = &oracle{router: r}
			s.Estimator = r.oracle
		}
	}
	if p.Queue != nil {
		s.Queue, s.Refresh = *p.Queue, func(request *schedule.Request) { r.decide.Refresh(request) }
	}
	if r.scheduler, err = schedule.New(s); err != nil {
		return nil, err
	}
	if r.replica != nil {
		r.replica.Join(sharedModel, r.scheduler)
	}
	r.decide, err = decide.New(decide.Options{Config: conf, Index: r.index, Scheduler: r.scheduler, Observer: r,
		BlockSize: func() int { return c.scenario.Hardware.BlockSize }})
	return r, err
}

// State implements policy.View.
func (r *router) State(w kv.Worker) policy.State {
	e := r.cluster.engines[w]
	if e == nil {
		return policy.State{}
	}
	return policy.State{Running: e.Running(), Waiting: e.Waiting(), Used: e.Used(), Work: e.Work()}
}

// Session implements policy.View.
func (r *router) Session() int { return r.current.session }

// join makes a worker known.
func (r *router) join(e *engine.Engine) error {
	if err := r.index.SetMember(e.ID(), e.Node().ID(), true); err != nil {
		return err
	}
	if r.estimator != nil {
		r.estimator.SetWorker(e.ID(), e.Node().ID(), "model")
	}
	return nil
}

// leave forgets a worker.
func (r *router) leave(w kv.Worker) error {
	r.index.RemoveOwner(kv.WorkerOwner(w))
	if err := r.index.SetMember(w, 0, false); err != nil {
		return err
	}
	r.scheduler.RemoveWorker(w)
	if r.estimator != nil {
		r.estimator.RemoveWorker(w)
	}
	return nil
}

// tick does the timed work. No message between routers is lost, so that none has to ask.
func (r *router) tick() {
	r.scheduler.Tick()
	if r.replica != nil && len(r.replica.Tick(r.cluster.clock.Wall())) > 0 {
		r.cluster.fail(errAsked)
	}
}

// report takes a load report in.
func (r *router) report(l *kvevent.LoadReport) {
	if l.Owner.Kind == kv.OwnerWorker {
		r.scheduler.ReportUsedBlocks(l.Owner.Worker(), l.Worker.DeviceBlocksUsed)
		r.scheduler.ReportRequests(l.Owner.Worker(), l.Worker.Running, l.Worker.Waiting)
	}
	if r.estimator != nil {
		r.estimator.Report(l)
	}
}

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

// queryOf returns the question where a prompt goes.
func queryOf(id string, p *prompt) *decide.Query {
	return &decide.Query{ID: id, UpdateStates: true, Hashed: &decide.Hashed{Tokens: p.tokens, Locals: p.locals[:p.promptBlocks], Sequence: p.sequence[:p.promptBlocks]}}
}

// route decides where a prompt goes, and calls then with the worker: at once, or when the prompt has waited. id
// is unique among all attempts.
func (r *router) route(id string, p *prompt, w wish, then func(kv.Worker)) {
	r.current = p
	q := queryOf(id, p)
	r.apply(&w, q)
	q.Explain = r.explains()
	if r.waiting == nil {
		m, err := r.decide.FindBestMatchDetails(context.Background(), q)
		r.finish(decided{q, m, err, then})
		return
	}
	queue, waits, at := r.waiting, make(chan struct{}), make(chan decided)
	q.Waits = func() { close(waits) }
	go func() {
		m, err := r.decide.FindBestMatchDetails(queue.ctx, q)
		d := decided{q, m, err, then}
		select {
		case <-waits:
			queue.decided <- d
		default:
			at <- d
		}
	}()
	select {
	case <-waits:
		queue.count++
	case d := <-at:
		r.finish(d)
	}
}

// collect finishes the requests that have got a worker since they waited, in the order of the decisions.
// Those without a booking come first, by their ids.
func (r *router) collect() {
	if r.waiting == nil {
		return
	}
	for n := r.waiting.count - r.scheduler.PendingCount(); n > 0; n = r.waiting.count - r.scheduler.PendingCount() {
		var all []decided
		for range n {
			all = append(all, <-r.waiting.decided)
		}
		slices.SortFunc(all, func(a, b decided) int {
			return cmp.Or(cmp.Compare(a.match.Booking, b.match.Booking), cmp.Compare(a.query.ID, b.query.ID))
		})
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
		r.estimator.Booked(&estimate.Booking{ID: d.query.ID, Worker: d.match.Worker, Tokens: d.query.Len(), BlockSize: r.cluster.scenario.Hardware.BlockSize, Hits: d.match.Expected(),
			Untracked: !r.config.TrackPrefillTokens(d.query.Override), ExpectedOutput: d.query.ExpectedOutput, HandedOver: d.query.HandedOver})
	}
	if d.query.Explain {
		r.log.Add(decisions.Decision{Request: d.query.ID, At: r.cluster.clock.Wall(), Tokens: d.query.Len(), BlockSize: r.cluster.scenario.Hardware.BlockSize},
			&d.match.Result, d.match.Candidates)
	}
	r.modes[modeOf(d.match.Mode)]++
	d.then(d.match.Worker)
}

// explainedDecisions is the number of decisions of a run that are explained.
const explainedDecisions = 8

// explains reports whether the next decision is explained: of the first seed those by price, in equal distances.
func (r *router) explains() bool {
	c := r.cluster
	if c.seed != 1 || !c.policy.Priced || c.clock.Now() < c.explainAt || c.clock.Now() >= c.scenario.Duration {
		return false
	}
	c.explainAt += (c.scenario.Duration - c.scenario.WarmUp) / explainedDecisions
	return true
}

// explained returns the explained decisions, the first one first.
func (r *router) explained() (all []report.Decision) {
	for _, d := range slices.Backward(r.log.Recent(explainedDecisions, r.cluster.clock.Wall())) {
		all = append(all, report.DecisionOf(&d, float64(d.At.Sub(engine.Epoch).Microseconds())/1e3))
	}
	return all
}

// modeOf returns a mode without the worker that it names.
func modeOf(mode string) string {
	for i, c := range mode {
		if c == ':' {
			return mode[:i] + ": fallback"
		}
	}
	return mode
}

// Decided implements decide.Observer. finish books the request.
func (r *router) Decided(*decide.Decision) {}

// SharedCacheFailed implements decide.Observer.
func (r *router) SharedCacheFailed() {}

// PrefillCompleted implements decide.Observer.
func (r *router) PrefillCompleted(id string) {
	if r.estimator != nil {
		r.estimator.PrefillDone(id)
	}
}

// OutputBlock implements decide.Observer.
func (r *router) OutputBlock(id string) {
	if r.estimator != nil {
		r.estimator.OutputBlock(id)
	}
}

// Freed implements decide.Observer.
func (r *router) Freed(id string) {
	if r.estimator != nil {
		r.estimator.Dropped(id)
	}
}

// Added implements decide.Observer.
func (r *router) Added(*decide.Query, kv.Worker, int, int) {}

// sharedModel is the model of all bookings.
var sharedModel = replica.Model{Name: "model", BlockSize: 64}

// errAsked says that a router asked for bookings again although no message was lost.
var errAsked = errors.New("a router asked for bookings that no message lost")

// exchange sends the changes of each router's bookings to the others. Changes that come within SyncBatch of a message
// wait for the rest of that time.
func (c *cluster) exchange() {
	now := c.clock.Now()
	for _, from := range c.routers {
		if from.sent > 0 && now < from.sent+SyncBatch {
			continue
		}
		out := from.replica.Outgoing(nil, c.clock.Wall())
		if len(out) == 0 {
			continue
		}
		from.sent = now
		c.clock.After(SyncBatch, func() {}) // exchange follows each event
		c.clock.After(SyncLag, func() {
			for _, to := range c.routers {
				for _, o := range out {
					to.replica.Receive(o.Data, c.clock.Wall())
				}
			}
		})
	}
}

// nextRouter returns the router of a prompt: that of its first blocks, or else each in turn.
func (c *cluster) nextRouter(p *prompt) *router {
	if c.parts != nil {
		return c.routers[c.parts.Ask(p.locals[:p.promptBlocks])]
	}
	c.turn++
	return c.routers[(c.turn-1)%len(c.routers)]
}
