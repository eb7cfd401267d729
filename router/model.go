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
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/metrics"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/remote"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/modes"
)

// Model is one model of a router: the index of its blocks, the scheduler of its workers,
// the decision, the estimator and the workers' cards. Models owns it. Each part has a
// lock of its own.
type Model struct {
	key       feed.ModelKey
	config    *config.Config
	index     *index.Index
	remote    *remote.Index // the index at other routers; nil without use_remote_indexer
	scheduler *schedule.Scheduler
	decide    *decide.Router
	estimate  *estimate.Estimator // nil without prices
	cards     *cardTable
	metrics   *metrics.Metrics
	history   *miss.History // nil when no misses are explained
	misses    *miss.Log
	decisions *decisions.Log
	hints     *readAhead // nil when the transport sends none
	log       *zap.Logger
	// unbookedOnce logs the first unbooked request of all models.
	unbookedOnce *sync.Once
	// current is the last view of package feed.
	current atomic.Pointer[feed.View]
}

// newModel returns a model of d without workers. journal is told of the model's bookings; nil tells nobody.
// The error is of one of the model's parts.
func newModel(key feed.ModelKey, d *Models, journal load.Journal) (*Model, error) {
	o := d.options
	out := &Model{key: key, config: o.Config, cards: newCardTable(), metrics: d.metrics, log: o.Log, unbookedOnce: &d.unbookedOnce}
	out.current.Store(&feed.View{Quality: feed.Fallback})
	var err error
	if out.index, err = index.New(o.Config.Index()); err != nil {
		return nil, err
	}
	if o.Config.Score == config.ScorePrice {
		if out.estimate, err = estimate.New(estimate.Options{}); err != nil {
			return nil, err
		}
	}
	if out.scheduler, err = schedule.New(out.scheduling(o, journal)); err != nil {
		return nil, err
	}
	cache := o.SharedCache
	if cache == nil && d.shared != nil {
		cache = d.shared.Over(out.IsEagle)
	}
	var x decide.Index = out.index
	if d.remote != nil {
		out.remote = d.remote.Index(key.Name, key.BlockSize, out.index)
		x = out.remote
	}
	out.decide, err = decide.New(decide.Options{
		Config: o.Config, Index: x, Scheduler: out.scheduler,
		BlockSize: func() int { return int(key.BlockSize) }, IsEagle: out.IsEagle, Silent: out.cards.silent,
		SharedCache: cache, PrefillLoadEstimator: o.PrefillLoadEstimator,
		Observer: &decisionObserver{model: out}, Log: o.Log.With(zap.String("model", key.Name)),
	})
	return out, err
}

// scheduling returns the options of the model's scheduler: its settings, and the functions by
// which it asks the index, the cards, the estimator and the predictions. The functions run
// only after newModel, so m.decide may still be nil here.
func (m *Model) scheduling(o *Options, journal load.Journal) schedule.Options {
	c := m.config
	s := schedule.Options{
		Config: c.Schedule(), Selector: o.Selector, Load: c.Load(), Busy: c.Busy(), Queue: c.Queue(o.Policies.Profile(m.key.Name)),
		Members: m.index.Members, Worker: m.cards.of,
		Held: func(l *index.Members, at int) uint64 { return m.index.Held(l, at) + m.decide.Guessed(l, at) },
	}
	s.Load.Journal = journal
	if s.Selector == nil {
		s.Selector = selectorOf(c)
	}
	if m.estimate != nil {
		s.Estimator = m.estimate
		// The estimator must also learn of requests that end without Free: expired requests,
		// and requests of a worker that left.
		s.Load.Ended = m.estimate.Dropped
	}
	if c.RouterPrefillLoadModel == config.LoadModelAIC {
		s.PrefillDuration = func(_ kv.Worker, tokens, cached int) time.Duration {
			return m.decide.PrefillDuration(tokens, cached)
		}
	}
	// A refresh holds the scheduler's lock, and must not wait for another router.
	if s.RefreshAfter = c.OverlapRefreshAfter(); s.RefreshAfter > 0 && !c.UseRemoteIndexer {
		s.Refresh = func(q *schedule.Request) { m.decide.Refresh(q) }
	}
	return s
}

// selectorOf returns the selector of the configured mode; nil for the mode kv.
func selectorOf(c *config.Config) schedule.Selector {
	switch c.RouterMode {
	case config.ModeRoundRobin:
		return &modes.RoundRobin{}
	case config.ModeRandom:
		return modes.NewRandom(c.Seed)
	case config.ModePowerOfTwo:
		return modes.NewPowerOfTwo(c.Seed)
	case config.ModeLeastLoaded:
		return modes.NewLeastLoaded(c.Seed)
	case config.ModeDirect:
		return modes.Direct{}
	}
	return nil
}

// IsEagle reports whether the workers hash pairs of tokens, by the configuration or by most
// workers' cards.
func (m *Model) IsEagle() bool { return m.config.IsEagle || m.current.Load().Pairs }

// Quality returns the quality of a decision made now.
func (m *Model) Quality() feed.Quality {
	if m.config.RouterMode != config.ModeKV {
		return feed.Fallback
	}
	if m.remote != nil {
		return m.remote.Quality()
	}
	return m.current.Load().Quality
}

// hasWorkers reports whether the model has a worker.
func (m *Model) hasWorkers() bool { return len(m.index.Members().List) > 0 }

// Idle implements feed.Model.
func (m *Model) Idle() bool { return !m.hasWorkers() && m.decide.PendingCount() == 0 }

// Index implements feed.Model.
func (m *Model) Index() *index.Index { return m.index }

// History implements feed.Model. It is nil when no misses are explained.
func (m *Model) History() *miss.History { return m.history }

// SetView implements feed.Model.
func (m *Model) SetView(v feed.View) { m.current.Store(&v) }

// Key returns the model's name and block size.
func (m *Model) Key() feed.ModelKey { return m.key }

// Decide returns the model's decide.Router.
func (m *Model) Decide() *decide.Router { return m.decide }

// FindBestMatch chooses the worker for a request and waits while the request is queued. The
// match carries a quality, which says how far its hits can be trusted. Errors are those of
// Router.FindBestMatch.
func (m *Model) FindBestMatch(ctx context.Context, q *Request) (Match, error) {
	quality := m.Quality()
	if q.UpdateStates && !q.Explain && m.decisions.Wants(time.Now()) {
		explained := *q // the caller's request stays as it is
		explained.Explain = true
		q = &explained
	}
	found, err := m.decide.FindBestMatchDetails(ctx, q)
	if err != nil {
		return Match{}, err
	}
	switch {
	case m.config.RouterMode != config.ModeKV: // the hits have no part in the choice
	case m.remote != nil:
		quality = feed.Quality(found.IndexQuality)
	case found.Waited > 0:
		// The hits may be from before the wait or from its end. Both may be less exact.
		quality = worse(quality, m.Quality())
	}
	if quality != feed.Fallback && m.remote == nil && m.guessed(found.Worker) {
		// The worker's hits are predictions.
		quality = feed.Fallback
	}
	if q.UpdateStates && !found.Booked {
		m.unbookedOnce.Do(func() {
			m.log.Warn("too many active requests: further requests are routed without a booking, and their load is not counted; raise router_max_active_requests",
				zap.Uint64("router_max_active_requests", m.config.MaxActiveRequests))
		})
	}
	if q.UpdateStates {
		m.decisions.Add(decisions.Decision{Request: q.ID, Model: m.key.Name, At: time.Now(), Waited: found.Waited,
			Tokens: q.Len(), BlockSize: int(m.key.BlockSize), Quality: string(quality)}, &found.Result, found.Candidates)
	}
	return Match{found, quality}, nil
}

// Overlaps returns each worker's overlap with a prompt, as decide.Router.Overlaps does, and how far the hits
// can be trusted. Errors are those of decide.Router.Overlaps.
func (m *Model) Overlaps(q *Request) ([]decide.Overlap, feed.Quality, error) {
	before := m.Quality()
	out, indexQuality, err := m.decide.QualifiedOverlaps(q)
	switch {
	case err != nil:
		return nil, feed.Fallback, err
	case m.config.RouterMode == config.ModeKV && m.remote != nil:
		return out, feed.Quality(indexQuality), nil
	}
	return out, worse(before, m.Quality()), nil
}

// Place is where a worker takes requests.
type Place struct {
	// Endpoint is the URL of the worker's server, empty when the worker told none.
	Endpoint string
	// Ranks is the number of the worker's data-parallel ranks, at least 1.
	Ranks int
}

// Place returns where worker w takes requests, by its card and by the ranks in the index.
func (m *Model) Place(w kv.Worker) Place {
	endpoint, ranks := m.cards.place(w)
	return Place{endpoint, max(ranks, m.decide.Ranks(w.ID))}
}

// guessed reports whether nobody tells what a worker holds: it publishes no events and has
// no pool.
func (m *Model) guessed(w kv.Worker) bool {
	members := m.index.Members()
	at, ok := members.Find(w)
	return ok && members.List[at].Pool == 0 && m.cards.silent(w)
}

// tick does the timed work of the model's parts: expiry of requests and predictions, and
// memory of workers that left. Run calls it every tickInterval.
func (m *Model) tick() {
	if m.cards.takeCapacityChanged() {
		m.scheduler.WorkersChanged() // once for all changes, because the call reads every card
	}
	m.decide.Tick()
	m.index.Sweep(sweepRuns)
}

// close closes the model's predictions.
func (m *Model) close() error { return m.decide.Close() }

// SetCard implements feed.Model: it stores the card that a worker announces, and tells the
// parts of the model that depend on it.
func (m *Model) SetCard(w kv.Worker, a *kvevent.Announcement) {
	// The scheduler reads the card of a new worker when the list of members changes.
	if m.cards.set(w, &a.Card) {
		m.scheduler.WorkersChanged()
	}
	if !a.Card.Silent { // events replace predictions
		m.decide.EventsBegin(w)
	}
	if m.estimate != nil {
		m.estimate.SetWorker(w, a.Pool, a.Model)
	}
}

// RemoveCard implements feed.Model.
func (m *Model) RemoveCard(w kv.Worker) { m.cards.remove(w) }

// Forget implements feed.Model: it drops the requests, predictions and measures of a worker
// that left or restarted.
func (m *Model) Forget(w kv.Worker) {
	m.scheduler.RemoveWorker(w)
	m.decide.ForgetWorker(w)
	if m.estimate != nil {
		m.estimate.RemoveWorker(w)
	}
}

// ApplyLoad implements feed.Model: it passes a load report of a worker or pool to the cards,
// the scheduler and the estimator.
func (m *Model) ApplyLoad(l *kvevent.LoadReport) {
	if l.Owner.Kind == kv.OwnerWorker {
		m.cards.setReported(l.Owner.Worker(), l.Worker.DeviceBlocksTotal)
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
	// Guess is zero without predictions. Estimate is zero without prices.
	Guess    approx.Stats
	Estimate estimate.Stats
	// Unbooked counts requests that AddRequest could not book. Unremembered counts decisions
	// that could not be recorded as predictions.
	Unbooked, Unremembered uint64
}

// stats returns the gauges and counters of all parts of the model.
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

// stats returns the stats of each open model, and their sum with the counters of retired
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
