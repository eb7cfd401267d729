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

// NoSnapshots is a SnapshotThreshold: none is saved. One that is stored is loaded
// all the same.
const NoSnapshots = -1

// Options configure a Router. The zero value is ready for use.
type Options struct {
	// Config is how workers are updateLosted and chosen, when requests wait, and what is
	// remembered; nil means config.Default. Who made it shows its notices. Of the
	// snapshots the fields below decide.
	Config *config.Config
	// Selector chooses instead of what Config says; nil for none.
	Selector schedule.Selector
	// PrefillLoadEstimator lets the load of a prefill fade while it runs, when Config
	// has the prefill load model aic, which needs it; no other one asks it.
	PrefillLoadEstimator decide.PrefillLoadEstimator
	// SharedCache is asked besides the index; nil means the one that Config names, if
	// it does.
	SharedCache sharedcache.Cache
	// FeedTimeout is the silence after which a publisher's owner is forgotten; 0
	// means 15 s.
	FeedTimeout time.Duration
	// QueryTimeout bounds one question to a publisher; 0 means 30 s.
	QueryTimeout time.Duration
	// MaxFeeds bounds the publishers listened to; 0 means 16,384. MaxQueries
	// bounds the questions in flight; 0 means 16.
	MaxFeeds, MaxQueries int
	// Snapshots keeps what the router knows for the next one; nil keeps nothing. A
	// snapshot is saved each SnapshotThreshold events and when Run ends; 0 means
	// 1,000,000 and NoSnapshots never. ResetStates discards the stored one at the
	// start instead of beginning with it.
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
