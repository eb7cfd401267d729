package decide

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
)

// Errors that callers tell apart with errors.Is; those of packages schedule and load
// come through too.
var (
	// ErrNoWorkers: no worker is known to send a request to.
	ErrNoWorkers = schedule.ErrNoEndpoints
	// ErrNoContextID: a request that is to be booked has no id.
	ErrNoContextID = errors.New("context_id must be provided when update_states is true")
	// ErrNotRecorded: decisions are not remembered, because events tell what
	// workers have.
	ErrNotRecorded = errors.New("routing decisions are recorded only without use_kv_events or with router_predicted_ttl_secs")
	// ErrUnknownWorker: a decision for a worker that is not known, or has gone, is not
	// remembered.
	ErrUnknownWorker = errors.New("worker is not known")
)

// Index is what a Router needs of index.Index.
type Index interface {
	Match(dst *index.Matches, locals []kv.LocalHash, r index.Reading)
	Members() *index.Members
	SetMember(w kv.Worker, pool uint64, known bool) error
	Walk(visit func(e *kvevent.RouterEvent) bool)
}

// PrefillLoadEstimator predicts how long a prefill takes, so that its load can fade
// while it runs.
type PrefillLoadEstimator interface {
	// PredictPrefillDuration is the time that a batch of so many prompts takes, each
	// with effectiveISL tokens to compute behind prefix cached ones. An error is
	// logged, and then the load stays until the prefill is marked complete.
	PredictPrefillDuration(batch, effectiveISL, prefix int) (time.Duration, error)
}

// Timings are how long the parts of one decision took. FindMatches and SharedCache
// overlap.
type Timings struct {
	BlockHashing, SequenceHashing, FindMatches, Scheduling, Total time.Duration
	// SharedCache is 0 when no shared cache was asked.
	SharedCache time.Duration
}

// Observer is told of decisions and of how requests go on. Its methods are called by
// the goroutines that decide, must not block and keep nothing that they are given.
type Observer interface {
	// Decided is called after each decision. m.Booked says that the request is on
	// the worker's account.
	Decided(d *Decision)
	// SharedCacheFailed is called when a shared cache did not answer.
	SharedCacheFailed()
	// PrefillCompleted and Freed are called for requests that are on the account.
	PrefillCompleted(id string)
	Freed(id string)
	// Added is called after AddRequest has booked a request that somebody else sent to
	// a worker; of its blocks, each of blockSize tokens, cached need no computing.
	Added(q *Query, worker kv.Worker, blockSize, cached int)
}

// Decision is what an Observer is told of one decision.
type Decision struct {
	Query *Query
	Match *Match
	// Blocks are the full blocks of the prompt, of BlockSize tokens.
	Blocks, BlockSize int
	Timings           Timings
}

// Options configure a Router. Index, Scheduler and BlockSize are required.
type Options struct {
	// Config is what the decision depends on; nil means config.Default. It is copied.
	Config    *config.Config
	Index     Index
	Scheduler *schedule.Scheduler
	// BlockSize is the number of tokens in a block, 0 while no worker is known.
	BlockSize func() int
	// IsEagle reports whether the engines hash pairs of tokens; see kv.BlockTokens. It is
	// asked for each request; nil is never.
	IsEagle func() bool
	// SharedCache, PrefillLoadEstimator and Observer may be nil.
	SharedCache sharedcache.Cache
	// SharedCacheTimeout bounds one question to SharedCache, which the request waits
	// for; 0 means 250 ms. A cache that bounds it itself should do so below that.
	SharedCacheTimeout   time.Duration
	PrefillLoadEstimator PrefillLoadEstimator
	Observer             Observer
	// Log may be nil.
	Log *zap.Logger
}

// Validate reports the first option that is missing or out of range.
func (o *Options) Validate() error {
	switch {
	case o.Index == nil:
		return errors.New("index: is required")
	case o.Scheduler == nil:
		return errors.New("scheduler: is required")
	case o.BlockSize == nil:
		return errors.New("block size: is required")
	}
	if o.SharedCacheTimeout < 0 || o.SharedCacheTimeout > time.Minute {
		return fmt.Errorf("shared cache timeout: %v is not in 0..%v", o.SharedCacheTimeout, time.Minute)
	}
	if o.Config != nil {
		if _, err := o.Config.Validate(); err != nil {
			return err
		}
	}
	return nil
}

type silent struct{}

func (silent) Decided(*Decision)       {}
func (silent) SharedCacheFailed()      {}
func (silent) PrefillCompleted(string) {}
func (silent) Freed(string)            {}

func (silent) Added(*Query, kv.Worker, int, int) {}
