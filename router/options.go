package router

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/policyfile"
	"github.com/blockyard-ai/blockyard/router/remote"
	"github.com/blockyard-ai/blockyard/router/replica"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
	"github.com/blockyard-ai/blockyard/router/source"
)

// NoSnapshots is a SnapshotThreshold that saves no snapshot. A stored snapshot is restored.
const NoSnapshots = -1

// Options configure a Router. The zero value is ready for use.
type Options struct {
	// Config has the router's settings; nil means config.Default. Snapshots and
	// SnapshotThreshold replace its settings of snapshots.
	Config *config.Config
	// Selector chooses workers instead of Config; nil for none.
	Selector schedule.Selector
	// PrefillLoadEstimator predicts prefill times. Only the prefill load model "aic" of
	// Config uses it, and needs it.
	PrefillLoadEstimator decide.PrefillLoadEstimator
	// Policies has the classes of the queue; nil means the file of Config, if any.
	Policies *policyfile.File
	// SharedCache is queried with the index; nil means the cache of Config, if any.
	SharedCache sharedcache.Cache
	// FeedTimeout is the silence after which an owner is forgotten; 0 means 15 s.
	FeedTimeout time.Duration
	// QueryTimeout bounds one query to a publisher; 0 means 30 s.
	QueryTimeout time.Duration
	// MaxFeeds bounds the publishers; 0 means 16,384. MaxQueries bounds the queries in
	// flight; 0 means 16.
	MaxFeeds, MaxQueries int
	// Snapshots stores the index and the feeds for the next start; nil stores nothing. The
	// router saves a snapshot every SnapshotThreshold events and when Run ends; 0 means
	// 1,000,000, NoSnapshots never. ResetStates discards the stored snapshot at the start.
	Snapshots         source.SnapshotStore
	SnapshotThreshold int
	ResetStates       bool
	// Replicas carries bookings between routers. Config's router_replica_sync needs it, and without
	// that setting it is not used.
	Replicas replica.Bus
	// Indexers carries questions between routers about their indexes. Config's serve_indexer and
	// use_remote_indexer need it.
	Indexers remote.Bus
	// Version is the program's version in the metrics.
	Version string
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range. It does not ask for connections, which a check of
// settings has not made.
func (o *Options) Validate() error {
	switch {
	case o.FeedTimeout < 0 || o.QueryTimeout < 0:
		return fmt.Errorf("feed timeout %v, query timeout %v: must not be negative", o.FeedTimeout, o.QueryTimeout)
	case o.MaxFeeds < 0 || o.MaxQueries < 0:
		return fmt.Errorf("max feeds %d, max queries %d: must not be negative", o.MaxFeeds, o.MaxQueries)
	case o.SnapshotThreshold < NoSnapshots || o.SnapshotThreshold > math.MaxUint32:
		return fmt.Errorf("router snapshot threshold: %d is not in 1..%d", o.SnapshotThreshold, uint32(math.MaxUint32))
	case o.Config == nil:
		return nil
	}
	if _, err := o.Config.Validate(); err != nil {
		return err
	}
	if o.Config.RouterPrefillLoadModel == config.LoadModelAIC && o.PrefillLoadEstimator == nil {
		return errors.New("router_prefill_load_model aic: needs a prefill load estimator")
	}
	return nil
}

// validateConnections reports the first setting that needs a connection which there is not. Config is set.
func (o *Options) validateConnections() error {
	switch {
	case o.Config.RouterReplicaSync && o.Replicas == nil:
		return errors.New("router_replica_sync true: needs NATS, over which routers share their bookings")
	case (o.Config.ServeIndexer || o.Config.UseRemoteIndexer) && o.Indexers == nil:
		return errors.New("serve_indexer, use_remote_indexer: need NATS, over which routers ask one another")
	}
	return nil
}

// withDefaults returns o with defaults in place of zero values.
func (o Options) withDefaults() Options {
	if o.Config == nil {
		c := config.Default()
		o.Config = &c
	}
	o.FeedTimeout = cmp.Or(o.FeedTimeout, 15*time.Second)
	o.QueryTimeout = cmp.Or(o.QueryTimeout, 30*time.Second)
	o.MaxFeeds = cmp.Or(o.MaxFeeds, 1<<14)
	o.MaxQueries = cmp.Or(o.MaxQueries, 16)
	o.SnapshotThreshold = cmp.Or(o.SnapshotThreshold, 1_000_000)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}
