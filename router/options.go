package router

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Mode is how a worker is chosen.
type Mode string

const (
	// ModeKV chooses by expected cost, knowing what is cached where.
	ModeKV Mode = "kv"
	// ModeRoundRobin takes the workers in turn.
	ModeRoundRobin Mode = "round-robin"
)

// NoSnapshots is a SnapshotThreshold: none is saved. One that is stored is loaded
// all the same.
const NoSnapshots = -1

// Options configure a Router. The zero value is ready for use.
type Options struct {
	// Mode is ModeKV when empty.
	Mode Mode
	// Weights of the cost; nil means schedule.DefaultConfig.
	Weights *schedule.Config
	// Choice says how ModeKV chooses among costs.
	Choice schedule.CostOptions
	// Index and Requests bound the index and the account of requests.
	Index    index.Options
	Requests schedule.Options
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
	Snapshots         SnapshotStore
	SnapshotThreshold int
	ResetStates       bool
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	switch {
	case o.Mode != "" && o.Mode != ModeKV && o.Mode != ModeRoundRobin:
		return fmt.Errorf("mode: %q is neither %s nor %s", o.Mode, ModeKV, ModeRoundRobin)
	case o.FeedTimeout < 0 || o.QueryTimeout < 0:
		return fmt.Errorf("feed timeout %v, query timeout %v: one is negative", o.FeedTimeout, o.QueryTimeout)
	case o.MaxFeeds < 0 || o.MaxQueries < 0:
		return fmt.Errorf("max feeds %d, max queries %d: one is negative", o.MaxFeeds, o.MaxQueries)
	case o.SnapshotThreshold < NoSnapshots || o.SnapshotThreshold > math.MaxUint32:
		return fmt.Errorf("router snapshot threshold: %d is not in 1..%d", o.SnapshotThreshold, uint32(math.MaxUint32))
	}
	if o.Weights != nil {
		if err := o.Weights.Validate(); err != nil {
			return err
		}
	}
	return cmp.Or(o.Choice.Validate(), o.Index.Validate(), o.Requests.Validate())
}

func (o Options) withDefaults() Options {
	if o.Mode == "" {
		o.Mode = ModeKV
	}
	if o.Weights == nil {
		weights := schedule.DefaultConfig()
		o.Weights = &weights
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
