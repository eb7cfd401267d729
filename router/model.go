package router

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
)

// Model is one model of a router: the index of its blocks, the scheduler of its workers,
// the decision, the estimator and the workers' cards. Models owns it. Each part has a
// lock of its own.
type Model struct {
	key       feed.ModelKey
	config    *config.Config
	index     *index.Index
	scheduler *schedule.Scheduler
	decide    *decide.Router
	estimate  *estimate.Estimator // nil without cost mode
	cards     *cardTable
	metrics   *Metrics
	log       *zap.Logger
	// unbookedOnce logs once, for all models, that requests are routed without being booked.
	unbookedOnce *sync.Once
	// current is the view that package feed published last.
	current atomic.Pointer[feed.View]
}

// newModel returns a model without workers. o must have its defaults.
func newModel(key feed.ModelKey, o *Options, shared *sharedcache.Client, m *Metrics, full *sync.Once) (*Model, error) {
	out := &Model{key: key, config: o.Config, cards: newCardTable(), metrics: m, log: o.Log, unbookedOnce: full}
	out.current.Store(&feed.View{Quality: feed.Fallback})
	var err error
	if out.index, err = index.New(o.Config.Index()); err != nil {
		return nil, err
	}
	if o.Config.Score == config.ScoreCost {
		if out.estimate, err = estimate.New(estimate.Options{}); err != nil {
			return nil, err
		}
	}
	if out.scheduler, err = schedule.New(out.scheduling(o)); err != nil {
		return nil, err
	}
	cache := o.SharedCache
	if cache == nil && shared != nil {
		cache = shared.Over(out.IsEagle)
	}
	out.decide, err = decide.New(decide.Options{
		Config: o.Config, Index: out.index, Scheduler: out.scheduler,
		BlockSize: func() int { return int(key.BlockSize) }, IsEagle: out.IsEagle,
		SharedCache: cache, PrefillLoadEstimator: o.PrefillLoadEstimator,
		Observer: &decisionObserver{model: out}, Log: o.Log.With(zap.String("model", key.Name)),
	})
	return out, err
}

// scheduling returns the scheduler's options.
func (m *Model) scheduling(o *Options) schedule.Options {
	c := m.config
	s := schedule.Options{
		Config: c.Schedule(), Selector: o.Selector, Load: c.Load(), Busy: c.Busy(), Queue: c.Queue(),
		Members: m.index.Members, Worker: m.cards.of,
		Held: func(l *index.Members, at int) uint64 { return m.index.Held(l, at) + m.decide.Guessed(l, at) },
	}
	if s.Selector == nil && c.RouterMode == config.ModeRoundRobin {
		s.Selector = &schedule.RoundRobin{}
	}
	if m.estimate != nil {
		s.Estimator = m.estimate
		// Nobody frees a request that expired, or whose worker left.
		s.Load.Ended = m.estimate.Dropped
	}
	if c.RouterPrefillLoadModel == config.LoadModelAIC {
		s.PrefillDuration = func(_ kv.Worker, tokens, cached int) time.Duration {
			return m.decide.PrefillDuration(tokens, cached)
		}
	}
	if s.RefreshAfter = c.OverlapRefreshAfter(); s.RefreshAfter > 0 {
		s.Refresh = func(q *schedule.Request) { m.decide.Refresh(q) }
	}
	return s
}

// IsEagle reports whether the workers hash pairs of tokens: the configuration says so, or
// most workers' cards do.
func (m *Model) IsEagle() bool { return m.config.IsEagle || m.current.Load().Pairs }

// Quality returns the quality of a decision made now.
func (m *Model) Quality() feed.Quality {
	if m.config.RouterMode == config.ModeRoundRobin {
		return feed.Fallback
	}
	return m.current.Load().Quality
}

// hasWorkers reports whether there is a worker. Workers of decide.Router.RegisterWorkers
// count.
func (m *Model) hasWorkers() bool { return len(m.index.Members().List) > 0 }

// Idle implements feed.Model.
func (m *Model) Idle() bool { return !m.hasWorkers() && m.decide.PendingCount() == 0 }

// Index implements feed.Model.
func (m *Model) Index() *index.Index { return m.index }

// SetView implements feed.Model.
func (m *Model) SetView(v feed.View) { m.current.Store(&v) }

// Decide returns the decision of the model.
func (m *Model) Decide() *decide.Router { return m.decide }

// FindBestMatch chooses the worker for a request; see Router.FindBestMatch.
func (m *Model) FindBestMatch(ctx context.Context, q *Request) (Match, error) {
	quality := m.Quality()
	found, err := m.decide.FindBestMatchDetails(ctx, q)
	if err != nil {
		return Match{}, err
	}
	if found.Waited > 0 {
		// The request was hashed before the wait and its worker chosen after it.
		quality = worse(quality, m.Quality())
	}
	if q.UpdateStates && !found.Booked {
		m.unbookedOnce.Do(func() {
			m.log.Warn("too many active requests: further ones are routed without being booked, so their load is not counted; raise router_max_active_requests",
				zap.Uint64("router_max_active_requests", m.config.MaxActiveRequests))
		})
	}
	return Match{found, quality}, nil
}

// tick does the timed work of the model.
func (m *Model) tick() {
	if m.cards.takeMeasured() {
		m.scheduler.WorkersChanged() // once for all workers, because the call looks at each worker
	}
	m.decide.Tick()
	m.index.Sweep(sweepRuns)
}

// close ends what runs for the model.
func (m *Model) close() error { return m.decide.Close() }

// SetCard implements feed.Model.
func (m *Model) SetCard(w kv.Worker, a *kvevent.Announcement) {
	// The scheduler notices a new worker by the list of members.
	if m.cards.set(w, &a.Card) {
		m.scheduler.WorkersChanged()
	}
	if m.estimate != nil {
		m.estimate.SetWorker(w, a.Pool, a.Model)
	}
}

// RemoveCard implements feed.Model.
func (m *Model) RemoveCard(w kv.Worker) { m.cards.remove(w) }

// Forget implements feed.Model.
func (m *Model) Forget(w kv.Worker) {
	m.scheduler.RemoveWorker(w)
	m.decide.ForgetWorker(w)
	if m.estimate != nil {
		m.estimate.RemoveWorker(w)
	}
}

// ApplyLoad implements feed.Model.
func (m *Model) ApplyLoad(l *kvevent.LoadReport) {
	if l.Owner.Kind == kv.OwnerWorker {
		m.cards.reported(l.Owner.Worker(), l.Worker.DeviceBlocksTotal)
		m.scheduler.ReportUsedBlocks(l.Owner.Worker(), l.Worker.DeviceBlocksUsed)
		// An engine that does not report its blocks does not report its requests.
		if l.Worker.DeviceBlocksTotal > 0 {
			m.scheduler.ReportRequests(l.Owner.Worker(), l.Worker.Running, l.Worker.Waiting)
		}
	}
	if m.estimate != nil {
		m.estimate.Report(l)
	}
}

// ModelStats are the gauges and counters of one model.
type ModelStats struct {
	Key     feed.ModelKey `metric:"-"`
	Quality feed.Quality
	// Workers counts announced and registered workers.
	Workers  int
	Index    index.Stats
	Requests schedule.Stats
	// Guess is 0 unless decisions are remembered, Estimate unless workers are scored by
	// cost.
	Guess    approx.Stats
	Estimate estimate.Stats
	// Unbooked counts requests that found no room on the account, Unremembered decisions
	// that were not remembered.
	Unbooked, Unremembered uint64
}

// stats returns the gauges and counters.
func (m *Model) stats() ModelStats {
	s := ModelStats{
		Key: m.key, Quality: m.Quality(), Workers: m.current.Load().Workers,
		Index: m.index.Stats(), Requests: m.scheduler.Stats(),
		Unbooked: m.decide.Unbooked(), Unremembered: m.decide.Unremembered(),
	}
	s.Guess, _ = m.decide.GuessStats()
	if m.estimate != nil {
		s.Estimate = m.estimate.Stats()
	}
	return s
}

// stats returns the stats of the open models and their sum, with the counters of retired
// models.
func (d *Models) stats() (all []ModelStats, sum ModelStats) {
	d.mu.Lock()
	sum = d.retired
	open := d.routes.Load().all // consistent with retired under the lock
	d.mu.Unlock()
	for _, m := range open {
		s := m.stats()
		all = append(all, s)
		sum.add(&s)
	}
	return all, sum
}

// add adds the gauges and counters of o to s.
func (s *ModelStats) add(o *ModelStats) { metric.Add(s, o) }

// addCounters adds the counters alone.
func (s *ModelStats) addCounters(o *ModelStats) { metric.AddCounters(s, o) }
