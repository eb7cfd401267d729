package router

import (
	"errors"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
	"github.com/blockyard-ai/blockyard/router/source"
)

// NoSnapshots is a SnapshotThreshold that saves no snapshot. A stored one is restored.
const NoSnapshots = -1

// Options configure a Router. The zero value is ready for use.
type Options struct {
	// Config says how to score and choose workers, when requests wait, and what to
	// remember; nil means config.Default. Its snapshot settings are not used: see
	// Snapshots below.
	Config *config.Config
	// Selector chooses workers instead of Config; nil for none.
	Selector schedule.Selector
	// PrefillLoadEstimator predicts prefill times. Only the prefill load model "aic" of
	// Config uses it, and needs it.
	PrefillLoadEstimator decide.PrefillLoadEstimator
	// SharedCache is asked beside the index; nil means the one that Config names, if any.
	SharedCache sharedcache.Cache
	// FeedTimeout is the silence after which an owner is forgotten; 0 means 15 s.
	FeedTimeout time.Duration
	// QueryTimeout bounds one question to a publisher; 0 means 30 s.
	QueryTimeout time.Duration
	// MaxFeeds bounds the publishers; 0 means 16,384. MaxQueries bounds the questions in
	// flight; 0 means 16.
	MaxFeeds, MaxQueries int
	// Snapshots stores what the router knows for its next start; nil stores nothing. A
	// snapshot is saved every SnapshotThreshold events and when Run ends; 0 means
	// 1,000,000, NoSnapshots never. ResetStates discards the stored snapshot at the start.
	Snapshots         source.SnapshotStore
	SnapshotThreshold int
	ResetStates       bool
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	switch {
	case o.FeedTimeout < 0 || o.QueryTimeout < 0:
		return fmt.Errorf("feed timeout %v, query timeout %v: one is negative", o.FeedTimeout, o.QueryTimeout)
	case o.MaxFeeds < 0 || o.MaxQueries < 0:
		return fmt.Errorf("max feeds %d, max queries %d: one is negative", o.MaxFeeds, o.MaxQueries)
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

func (o Options) withDefaults() Options {
	if o.Config == nil {
		c := config.Default()
		o.Config = &c
	}
	if o.FeedTimeout == 0 {
		o.FeedTimeout = 15 * time.Second
	}
	if o.QueryTimeout == 0 {
		o.QueryTimeout = 30 * time.Second
	}
	if o.MaxFeeds == 0 {
		o.MaxFeeds = 1 << 14
	}
	if o.MaxQueries == 0 {
		o.MaxQueries = 16
	}
	if o.SnapshotThreshold == 0 {
		o.SnapshotThreshold = 1_000_000
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}
