package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
)

// Errors that callers tell apart with errors.Is; those of packages decide, schedule
// and load come through too.
var (
	// ErrNoWorkers: no worker is known to send a request to.
	ErrNoWorkers = decide.ErrNoWorkers
	// ErrNoRequestID: a request that is to be kept account of has no id.
	ErrNoRequestID = decide.ErrNoContextID
	// ErrStarting: the workers to wait for at the start are not all known yet.
	ErrStarting = errors.New("initial workers are missing")
)

// Router chooses workers. Make one with New and run it with Run.
type Router struct {
	config    config.Config
	log       *zap.Logger
	index     *index.Index
	scheduler *schedule.Scheduler
	decide    *decide.Router
	estimate  *estimate.Estimator // nil unless workers are scored by cost
	cards     *cardTable
	feeds     *feedSet
	loads     *loadTable
	snapshots *snapshotKeeper
	transport Transport
	shared    *sharedcache.Client // nil without one of the router's own
	timeout   time.Duration
	slots     int
	results   chan *queryResult
	metrics   *metrics
	// begun is set once the initial workers were all known.
	begun atomic.Bool
	// routing holds a token for each request that is being routed.
	routing    chan struct{}
	bodies     bodyBudget
	natsServed natsServeCounters
	// full is for saying once that requests are routed without being booked.
	full sync.Once
}

// New returns a router that listens to t once Run is called. The caller closes
// t after Run has returned.
func New(o Options, t Transport) (*Router, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	o = o.withDefaults()
	r := &Router{
		config: *o.Config, log: o.Log, cards: newCardTable(), loads: newLoadTable(), transport: t,
		timeout: o.QueryTimeout, slots: o.MaxQueries,
		results: make(chan *queryResult), routing: make(chan struct{}, maxNewRequests),
		bodies: bodyBudget{reading: byteLimit{most: maxReading}, kept: byteLimit{most: maxKept}},
	}
	var err error
	if r.index, err = index.New(r.config.Index()); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	r.metrics = newMetrics(r)
	if err := r.assemble(&o); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	r.feeds = newFeedSet(r.index, r.scheduler, &o)
	r.feeds.deaf = !r.config.ShouldSubscribeToKVEvents()
	r.feeds.joined, r.feeds.left = r.joined, r.left
	if r.config.KVCacheBlockSize != nil {
		r.feeds.blockSize = *r.config.KVCacheBlockSize
	}
	if g, ok := t.(*Registry); ok {
		r.feeds.heard, r.feeds.stored = g.heard, g.stored()
	}
	r.snapshots = &snapshotKeeper{store: o.Snapshots, threshold: uint64(max(0, o.SnapshotThreshold)),
		reset: o.ResetStates, feeds: r.feeds, log: o.Log}
	return r, nil
}

// assemble makes what decides: the estimator, the scheduler, the shared cache and
// the facade over them.
func (r *Router) assemble(o *Options) (err error) {
	if r.config.Score == config.ScoreCost {
		if r.estimate, err = estimate.New(estimate.Options{}); err != nil {
			return err
		}
	}
	r.loads.heard = r.heardLoad
	if r.scheduler, err = schedule.New(r.scheduling(o)); err != nil {
		return err
	}
	shared := o.SharedCache
	if shared == nil && r.config.SharedCacheURL != nil {
		r.shared, err = sharedcache.NewClient(sharedcache.Options{URL: *r.config.SharedCacheURL, Pairs: r.config.IsEagle})
		if err != nil {
			return err
		}
		shared = r.shared
	}
	r.decide, err = decide.New(decide.Options{
		Config: &r.config, Index: r.index, Scheduler: r.scheduler,
		BlockSize: r.blockSize,
		IsEagle:   r.config.IsEagle, SharedCache: shared, PrefillLoadEstimator: o.PrefillLoadEstimator,
		Observer: &watcher{router: r}, Log: r.log,
	})
	return err
}

// blockSize is that of the workers that were announced, or without such that of the
// configuration; 0 when neither says.
func (r *Router) blockSize() int {
	if n := r.feeds.current.Load().blockSize; n > 0 || r.config.KVCacheBlockSize == nil {
		return n
	}
	return int(*r.config.KVCacheBlockSize)
}

// scheduling are the scheduler's options.
func (r *Router) scheduling(o *Options) schedule.Options {
	c := &r.config
	s := schedule.Options{
		Config: c.Schedule(), Selector: o.Selector, Load: c.Load(), Busy: c.Busy(), Queue: c.Queue(),
		Members: r.index.Members, Worker: r.cards.of,
		Held: func(m *index.Members, at int) uint64 { return r.index.Held(m, at) + r.decide.Guessed(m, at) },
	}
	if s.Selector == nil && c.RouterMode == config.ModeRoundRobin {
		s.Selector = &schedule.RoundRobin{}
	}
	if r.estimate != nil {
		s.Estimator = r.estimate
		// Nobody frees a request of which nothing is heard, or whose worker is gone.
		s.Load.Ended = r.estimate.Dropped
	}
	if c.RouterPrefillLoadModel == config.LoadModelAIC {
		s.PrefillDuration = func(_ kv.Worker, tokens, cached int) time.Duration {
			return r.decide.PrefillDuration(tokens, cached)
		}
	}
	if s.RefreshAfter = c.OverlapRefreshAfter(); s.RefreshAfter > 0 {
		s.Refresh = func(q *schedule.Request) { r.decide.Refresh(q) }
	}
	return s
}

// Request is a prompt to find a worker for.
type Request = decide.Query

// Match is the answer to FindBestMatch.
type Match struct {
	decide.Match
	Quality Quality
}

// FindBestMatch chooses the worker for a request. It waits where requests queue, until
// ctx ends. The error is ErrNoWorkers, ErrNoRequestID, ErrStarting, that of ctx, a
// *decide.QueryError, or one of packages schedule and load.
func (r *Router) FindBestMatch(ctx context.Context, q *Request) (Match, error) {
	if err := r.started(); err != nil {
		return Match{}, err
	}
	quality := r.Quality()
	m, err := r.decide.FindBestMatchDetails(ctx, q)
	if err != nil {
		return Match{}, err
	}
	if m.Waited > 0 {
		// It was chosen by what was known before the wait, from those there are now.
		quality = worse(quality, r.Quality())
	}
	if q.UpdateStates && !m.Booked {
		r.full.Do(func() {
			r.log.Warn("too many requests run: more are routed without being booked, and their load is not seen; router_max_active_requests allows more",
				zap.Uint64("router_max_active_requests", r.config.MaxActiveRequests))
		})
	}
	return Match{m, quality}, nil
}

func worse(a, b Quality) Quality {
	for _, q := range []Quality{QualityFallback, QualityDegraded} {
		if a == q || b == q {
			return q
		}
	}
	return QualityExact
}

// started reports whether the workers to wait for at the start were all known once.
func (r *Router) started() error {
	if r.begun.Load() {
		return nil
	}
	if have, want := r.decide.Workers(), r.decide.InitialWorkers(); have < want {
		return fmt.Errorf("%w: %d of %d are known", ErrStarting, have, want)
	}
	r.begun.Store(true)
	return nil
}

// Facade is what decides, for callers that need more than a request's life: the ranks
// of a worker, what workers have of a prompt, a dump of the index. It belongs to the
// router and works while Run does.
func (r *Router) Facade() *decide.Router { return r.decide }

// AddRequest is decide.Router's.
func (r *Router) AddRequest(q *Request, w kv.Worker, cachedTokens int) error {
	return r.decide.AddRequest(q, w, cachedTokens)
}

// MarkPrefillCompleted is decide.Router's.
func (r *Router) MarkPrefillCompleted(id string) error { return r.decide.MarkPrefillCompleted(id) }

// AddOutputBlock is decide.Router's.
func (r *Router) AddOutputBlock(id string, decay *float64) error {
	return r.decide.AddOutputBlock(id, decay)
}

// Free is decide.Router's.
func (r *Router) Free(id string) bool { return r.decide.Free(id) }

// PotentialLoads is decide.Router's GetPotentialLoads.
func (r *Router) PotentialLoads(q *Request) ([]schedule.PotentialLoad, error) {
	return r.decide.GetPotentialLoads(q)
}

// Overlaps is decide.Router's.
func (r *Router) Overlaps(q *Request) ([]decide.Overlap, error) { return r.decide.Overlaps(q) }
