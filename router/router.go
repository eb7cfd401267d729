package router

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/console"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/metrics"
	"github.com/blockyard-ai/blockyard/router/policyfile"
	"github.com/blockyard-ai/blockyard/router/remote"
	"github.com/blockyard-ai/blockyard/router/replica"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// Errors for errors.Is. Errors of packages decide, schedule and load are returned too.
var (
	// ErrNoWorkers says that the router has no worker.
	ErrNoWorkers = decide.ErrNoWorkers
	// ErrNoRequestID says that a request to book has no id.
	ErrNoRequestID = decide.ErrNoContextID
	// ErrPeerSilent says that the router that booked a request does not answer.
	ErrPeerSilent = errors.New("the router of the booking does not answer")
	// ErrStarting says that initial workers are still missing.
	ErrStarting = errors.New("initial workers are missing")
)

// Router chooses workers. Make one with New and run it with Run.
type Router struct {
	config    config.Config
	log       *zap.Logger
	models    *Models
	feeds     *feed.Set
	snapshots *feed.Keeper
	replicas  *replica.Sync  // nil without router_replica_sync
	remote    *remote.Client // nil without use_remote_indexer
	indexers  remote.Bus     // nil without serve_indexer
	served    atomic.Pointer[remote.Server]
	transport source.Transport
	shared    *sharedcache.Client // of the configuration; nil without one or with Options.SharedCache
	timeout   time.Duration
	results   chan *queryResult
	metrics   *metrics.Metrics
	hints     *readAhead // nil when the transport sends none
	history   *console.History
	// started is true once all initial workers have joined.
	started atomic.Bool
}

// New returns a router that reads events from transport t once Run is called. The caller
// closes t after Run has returned. The error names the option that is out of range.
func New(o Options, t source.Transport) (*Router, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	o = o.withDefaults()
	if err := o.validateConnections(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	r := &Router{
		config: *o.Config, log: o.Log, transport: t,
		timeout: o.QueryTimeout,
		results: make(chan *queryResult),
	}
	o.Config = &r.config
	if o.SharedCache == nil && r.config.SharedCacheURL != nil {
		var err error
		if r.shared, err = sharedcache.NewClient(sharedcache.Options{URL: *r.config.SharedCacheURL}); err != nil {
			return nil, fmt.Errorf("router: %w", err)
		}
	}
	if o.Policies == nil {
		var err error
		if o.Policies, err = policies(&r.config); err != nil {
			return nil, err
		}
	}
	if r.config.RouterReplicaSync {
		r.replicas = replica.New(replica.Options{Bus: o.Replicas, Mark: r.applyMark, Log: o.Log})
	}
	r.shareIndex(&o)
	r.models = newModels(&o, r.shared, r.replicas, r.remote)
	r.metrics = metrics.New(o.Version)
	r.metrics.Collect(r.scrape)
	r.models.metrics = r.metrics
	feeds := feed.Options{
		Models: r.models, Log: o.Log, Timeout: o.FeedTimeout, KeepAbsent: r.config.RequestExpiry(),
		MaxFeeds: o.MaxFeeds, MaxQueries: o.MaxQueries, WithoutEvents: !r.config.ShouldSubscribeToKVEvents(),
	}
	switch {
	case r.remote != nil: // Operators search for this text of Dynamo's.
		r.log.Info("Skipping KV event subscription (using remote indexer)")
	case feeds.WithoutEvents:
		// Operators search for this text of Dynamo's.
		r.log.Info(fmt.Sprintf("Skipping KV event subscription (use_kv_events=%t, overlap_score_credit=%v)",
			r.config.UseKVEvents, r.config.OverlapScoreCredit))
	}
	if r.config.KVCacheBlockSize != nil {
		feeds.BlockSize = *r.config.KVCacheBlockSize
	}
	feeds.Joiner, _ = t.(source.Joiner)
	r.feeds = feed.New(feeds)
	r.hints = newReadAhead(t, r.feeds.PoolPublisher, o.Log)
	r.models.hints = r.hints
	r.history = r.newHistory()
	r.snapshots = feed.NewKeeper(feed.KeeperOptions{Store: o.Snapshots, Threshold: uint64(max(0, o.SnapshotThreshold)),
		Reset: o.ResetStates, Log: o.Log}, r.feeds)
	return r, nil
}

// shareIndex sets what the router needs to serve its index or to ask another router's.
func (r *Router) shareIndex(o *Options) {
	if r.config.UseRemoteIndexer {
		r.remote = remote.NewClient(remote.Options{Bus: o.Indexers, Log: o.Log})
	}
	if r.config.ServeIndexer {
		r.indexers = o.Indexers
	}
}

// policies reads the policy file of a configuration. Without one it returns an empty file.
func policies(c *config.Config) (*policyfile.File, error) {
	if c.RouterPolicyConfig == nil {
		return &policyfile.File{}, nil
	}
	f, err := policyfile.Load(*c.RouterPolicyConfig)
	if err != nil {
		return nil, fmt.Errorf("router_policy_config: %w", err)
	}
	return f, nil
}

// Reload takes over the live settings of c, and reads the policy file again. Busy thresholds that c does
// not change stay as SetBusy left them. Waiting requests go on by the new rules. The error names the
// setting or the field of the file; nothing has changed then.
func (r *Router) Reload(c *config.Config) error {
	next := r.config.WithLive(c)
	if _, err := next.Validate(); err != nil {
		return err
	}
	file, err := policies(&next)
	if err != nil {
		return err
	}
	return r.models.reload(&next, file)
}

// Request is a prompt to find a worker for.
type Request = decide.Query

// Match is the answer to FindBestMatch.
type Match struct {
	decide.Match
	Quality feed.Quality
}

// FindBestMatch chooses the worker for a request. It waits while the request is queued, until
// ctx ends. The error is ErrNoWorkers, ErrNoRequestID, ErrStarting, ErrUnknownModel,
// ErrModelRequired, the error of ctx, a *decide.QueryError, or one of packages schedule and
// load.
func (r *Router) FindBestMatch(ctx context.Context, q *Request) (Match, error) {
	if err := r.Started(); err != nil {
		return Match{}, err
	}
	m, err := r.Model(q.Model)
	if err != nil {
		return Match{}, err
	}
	return m.FindBestMatch(ctx, q)
}

// Model returns the model of a request. An empty name means the only model with workers.
// The error is ErrNoWorkers, ErrUnknownModel or ErrModelRequired.
func (r *Router) Model(name string) (*Model, error) { return r.models.find(name) }

// Models returns the models of a name, or all of them, ordered by name and block size.
func (r *Router) Models(name string) []*Model { return r.models.routes.Load().named(name) }

// Config returns the router's configuration. Callers must not change it.
func (r *Router) Config() *config.Config { return &r.config }

// Metrics returns the metrics of GET /metrics.
func (r *Router) Metrics() *metrics.Metrics { return r.metrics }

// Snapshots returns the keeper of the router's snapshots. Callers may use its methods Want, HasStore
// and Stats.
func (r *Router) Snapshots() *feed.Keeper { return r.snapshots }

// Registry returns the router's transport if it is a registry, else nil.
func (r *Router) Registry() *registry.Source {
	g, _ := r.transport.(*registry.Source)
	return g
}

// Busy returns the busy thresholds of a model. An empty name means models opened later.
func (r *Router) Busy(model string) (schedule.BusyThresholds, error) { return r.models.busyOf(model) }

// SetBusy replaces the busy thresholds of the models of a name. An empty name means all
// models and models opened later. After an error, which names the threshold that is out of
// range, nothing has changed.
func (r *Router) SetBusy(model string, b schedule.BusyThresholds) error {
	return r.models.setBusy(model, b)
}

// worse returns the worse of two qualities. Fallback is the worst, and Exact the best.
func worse(a, b feed.Quality) feed.Quality {
	for _, q := range []feed.Quality{feed.Fallback, feed.Degraded} {
		if a == q || b == q {
			return q
		}
	}
	return feed.Exact
}

// Started returns nil once as many workers have joined as the configuration wants at the
// start, and from then on. Before that it returns ErrStarting.
func (r *Router) Started() error {
	if r.started.Load() {
		return nil
	}
	if have, want := r.models.workers(), r.config.InitialWorkers(); have < want {
		return fmt.Errorf("%w: %d of %d have joined", ErrStarting, have, want)
	}
	r.started.Store(true)
	return nil
}

// MarkPrefillCompleted ends the prefill of a request. An empty model means any model.
func (r *Router) MarkPrefillCompleted(model, id string) error {
	return r.onRequest(model, id, func(m *Model) error { return m.decide.MarkPrefillCompleted(id) })
}

// AddOutputBlock counts one more output block of a request. An empty model means any model.
func (r *Router) AddOutputBlock(model, id string, decay *float64) error {
	return r.onRequest(model, id, func(m *Model) error { return m.decide.AddOutputBlock(id, decay) })
}

// Touch records that a request is alive. An empty model means any model. The error is
// load.ErrUnknownRequest.
func (r *Router) Touch(model, id string) error {
	return r.onRequest(model, id, func(m *Model) error { return m.scheduler.Touch(id) })
}

// onRequest calls f for the models of a name, or for all models, until f finds the request:
// it returns another error than load.ErrUnknownRequest. onRequest returns that error, or
// load.ErrUnknownRequest when no model has the request.
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

// Free ends a request. It returns false when no model of the name has the request. An empty
// model means any model.
func (r *Router) Free(model, id string) bool {
	return r.models.withRequest(model, func(m *Model) bool { return m.decide.Free(id) })
}
