package simulate

import (
	"errors"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
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
	// waiting is nil unless the policy has a queue.
	waiting *waiting
}

var _ policy.View = (*router)(nil)
var _ decide.Observer = (*router)(nil)

func newRouter(c *cluster, number int) (*router, error) {
	r := &router{cluster: c, modes: make(map[string]int), waiting: newWaiting(&c.policy)}
	var err error
	if r.index, err = index.New(index.Options{}); err != nil {
		return nil, err
	}
	conf := config.Default()
	conf.RouterTrackOutputBlocks = true
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
		s.Config.Price = true
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
	r.decide, err = decide.New(decide.Options{Config: &conf, Index: r.index, Scheduler: r.scheduler, Observer: r,
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

// exchange sends the changes of each router's bookings to the others.
func (c *cluster) exchange() bool {
	for _, from := range c.routers {
		if len(from.replica.Tick(c.clock.Wall())) > 0 {
			c.fail(errAsked)
		}
		out := from.replica.Outgoing(nil, c.clock.Wall())
		if len(out) == 0 {
			continue
		}
		c.clock.After(SyncLag/2, func() {
			for _, to := range c.routers {
				for _, o := range out {
					to.replica.Receive(o.Data, c.clock.Wall())
				}
			}
		})
	}
	return !c.over()
}
