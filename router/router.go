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
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
	"github.com/blockyard-ai/blockyard/router/source"
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
	models    *Models
	feeds     *feedSet
	snapshots *snapshotKeeper
	transport source.Transport
	shared    *sharedcache.Client // nil without one of the router's own
	timeout   time.Duration
	results   chan *queryResult
	metrics   *metrics
	// registration lets clients register workers.
	registration bool
	// begun is set once the initial workers were all known.
	begun atomic.Bool
	// routing holds a token for each request that is being routed.
	routing    chan struct{}
	bodies     *bodyBudget
	natsServed natsServeCounters
	// full is for saying once that requests are routed without being booked.
	full sync.Once
}

// New returns a router that listens to t once Run is called. The caller closes
// t after Run has returned.
func New(o Options, t source.Transport) (*Router, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	o = o.withDefaults()
	r := &Router{
		config: *o.Config, registration: o.HTTPRegistration, log: o.Log, transport: t,
		timeout: o.QueryTimeout,
		results: make(chan *queryResult), routing: make(chan struct{}, maxNewRequests),
		bodies: newBodyBudget(maxReading, maxKept),
	}
	o.Config = &r.config
	if o.SharedCache == nil && r.config.SharedCacheURL != nil {
		var err error
		if r.shared, err = sharedcache.NewClient(sharedcache.Options{URL: *r.config.SharedCacheURL}); err != nil {
			return nil, fmt.Errorf("router: %w", err)
		}
	}
	r.models = newModels(&o, r.shared)
	r.metrics = newMetrics(r)
	r.models.metrics = r.metrics
	feeds := FeedOptions{
		Models: r.models, Log: o.Log, Timeout: o.FeedTimeout, KeepAbsent: r.config.RequestExpiry(),
		MaxFeeds: o.MaxFeeds, MaxQueries: o.MaxQueries, WithoutEvents: !r.config.ShouldSubscribeToKVEvents(),
	}
	if feeds.WithoutEvents {
		// The words are Dynamo's, for those who look for them.
		r.log.Info(fmt.Sprintf("Skipping KV event subscription (use_kv_events=%t, overlap_score_credit=%v)",
			r.config.UseKVEvents, r.config.OverlapScoreCredit))
	}
	if r.config.KVCacheBlockSize != nil {
		feeds.BlockSize = *r.config.KVCacheBlockSize
	}
	feeds.Joiner, _ = t.(source.Joiner)
	r.feeds = newFeedSet(feeds)
	r.snapshots = NewKeeper(KeeperOptions{Store: o.Snapshots, Threshold: uint64(max(0, o.SnapshotThreshold)),
		Reset: o.ResetStates, Log: o.Log}, r.feeds)
	return r, nil
}

// Request is a prompt to find a worker for.
type Request = decide.Query

// Match is the answer to FindBestMatch.
type Match struct {
	decide.Match
	Quality Quality
}

// FindBestMatch chooses the worker for a request. It waits where requests queue, until
// ctx ends. The error is ErrNoWorkers, ErrNoRequestID, ErrStarting, ErrUnknownModel,
// ErrModelRequired, that of ctx, a *decide.QueryError, or one of packages schedule and
// load.
func (r *Router) FindBestMatch(ctx context.Context, q *Request) (Match, error) {
	m, err := r.model(q.Model)
	if err != nil {
		return Match{}, err
	}
	return r.findBestMatch(ctx, m, q)
}

// model returns the model that a request means, once the router has begun.
func (r *Router) model(name string) (*Model, error) {
	if err := r.started(); err != nil {
		return nil, err
	}
	return r.models.find(name)
}

func (r *Router) findBestMatch(ctx context.Context, model *Model, q *Request) (Match, error) {
	quality := model.Quality()
	m, err := model.decide.FindBestMatchDetails(ctx, q)
	if err != nil {
		return Match{}, err
	}
	if m.Waited > 0 {
		// It was chosen by what was known before the wait, from those there are now.
		quality = worse(quality, model.Quality())
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
	if have, want := r.models.workers(), r.config.InitialWorkers(); have < want {
		return fmt.Errorf("%w: %d of %d are known", ErrStarting, have, want)
	}
	r.begun.Store(true)
	return nil
}

// Facade returns the decision of one model, for callers that need more than a request's
// life: the ranks of a worker, what workers have of a prompt, a dump of the index. An
// empty name means the only model. A model that no worker serves is made where
// kv_cache_block_size is set, for workers that decide.Router.RegisterWorkers is going to
// make known. The decision belongs to the router and works while Run does. Errors are
// those of FindBestMatch.
func (r *Router) Facade(model string) (*decide.Router, error) {
	m, err := r.models.find(model)
	if err == nil || r.config.KVCacheBlockSize == nil || errors.Is(err, ErrModelRequired) {
		if err != nil {
			return nil, err
		}
		return m.decide, nil
	}
	if err = r.feeds.Keep(ModelKey{model, *r.config.KVCacheBlockSize}); err != nil {
		return nil, err
	}
	if m, err = r.models.find(model); err != nil {
		return nil, err
	}
	return m.decide, nil
}

// AddRequest is decide.Router's, of the model that q names.
func (r *Router) AddRequest(q *Request, w kv.Worker, cachedTokens int) error {
	m, err := r.models.find(q.Model)
	if err != nil {
		return err
	}
	return m.decide.AddRequest(q, w, cachedTokens)
}

// MarkPrefillCompleted is decide.Router's, of whichever model has the request.
func (r *Router) MarkPrefillCompleted(id string) error {
	return r.markPrefillCompleted("", id)
}

func (r *Router) markPrefillCompleted(model, id string) error {
	return r.onRequest(model, id, func(m *Model) error { return m.decide.MarkPrefillCompleted(id) })
}

// AddOutputBlock is decide.Router's, of whichever model has the request.
func (r *Router) AddOutputBlock(id string, decay *float64) error {
	return r.addOutputBlock("", id, decay)
}

func (r *Router) addOutputBlock(model, id string, decay *float64) error {
	return r.onRequest(model, id, func(m *Model) error { return m.decide.AddOutputBlock(id, decay) })
}

// onRequest calls f for the models of a name, or for all, until one knows the request.
func (r *Router) onRequest(model, id string, f func(m *Model) error) error {
	err := fmt.Errorf("request %q: %w", id, load.ErrUnknownRequest)
	r.models.withRequest(model, func(m *Model) bool {
		if e := f(m); !errors.Is(e, load.ErrUnknownRequest) {
			err = e
			return true
		}
		return false
	})
	return err
}

// Free is decide.Router's, of whichever model has the request.
func (r *Router) Free(id string) bool { return r.free("", id) }

func (r *Router) free(model, id string) bool {
	return r.models.withRequest(model, func(m *Model) bool { return m.decide.Free(id) })
}

// PotentialLoads is decide.Router's GetPotentialLoads, of the model that q names.
func (r *Router) PotentialLoads(q *Request) ([]schedule.PotentialLoad, error) {
	m, err := r.models.find(q.Model)
	if err != nil {
		return nil, err
	}
	return m.decide.GetPotentialLoads(q)
}

// Overlaps is decide.Router's, of the model that q names.
func (r *Router) Overlaps(q *Request) ([]decide.Overlap, error) {
	m, err := r.models.find(q.Model)
	if err != nil {
		return nil, err
	}
	return m.decide.Overlaps(q)
}
