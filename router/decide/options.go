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

// Errors for errors.Is. Errors of packages schedule and load are returned too.
var (
	// ErrNoWorkers says that no worker is known.
	ErrNoWorkers = schedule.ErrNoEndpoints
	// ErrNoContextID says that a request to book has no id.
	ErrNoContextID = errors.New("context_id must be provided when update_states is true")
	// ErrNotRecorded says that decisions are not recorded, because events tell what
	// workers hold.
	ErrNotRecorded = errors.New("routing decisions are recorded only without use_kv_events or with router_predicted_ttl_secs")
	// ErrUnknownWorker says that a decision names an unknown worker.
	ErrUnknownWorker = errors.New("worker is not known")
)

// Index is the part of index.Index that a Router needs.
type Index interface {
	Match(dst *index.Matches, locals []kv.LocalHash, r index.Reading)
	Members() *index.Members
	SetMember(w kv.Worker, pool uint64, known bool) error
	Walk(visit func(e *kvevent.RouterEvent) bool)
}

// PrefillLoadEstimator predicts how long a prefill takes, so that its load can run
// down.
type PrefillLoadEstimator interface {
	// PredictPrefillDuration returns the time for a batch of prompts, each with
	// effectiveISL tokens to compute behind prefix cached ones. An error is logged,
	// and then the load stays until the prefill is marked complete.
	PredictPrefillDuration(batch, effectiveISL, prefix int) (time.Duration, error)
}

// Timings are the durations of the parts of one decision. FindMatches and
// SharedCache overlap.
type Timings struct {
	BlockHashing, SequenceHashing, FindMatches, Scheduling, Total time.Duration
	// SharedCache is 0 when no shared cache was asked.
	SharedCache time.Duration
}

// Observer is told of decisions and of the life of requests. The deciding
// goroutines call its methods, which must not block and must keep no argument.
type Observer interface {
	// Decided is called after each decision. m.Booked says that the request is
	// booked.
	Decided(d *Decision)
	// SharedCacheFailed is called when a shared cache did not answer.
	SharedCacheFailed()
	// PrefillCompleted and Freed are called for booked requests.
	PrefillCompleted(id string)
	Freed(id string)
	// Added is called after AddRequest has booked a request. Of its blocks of
	// blockSize tokens, cached need no computing.
	Added(q *Query, worker kv.Worker, blockSize, cached int)
}

// Decision describes one decision to an Observer.
type Decision struct {
	Query *Query
	Match *Match
	// Blocks are the full blocks of the prompt, of BlockSize tokens.
	Blocks, BlockSize int
	Timings           Timings
}

// Options configure a Router. Index, Scheduler and BlockSize are required.
type Options struct {
	// Config is copied; nil means config.Default.
	Config    *config.Config
	Index     Index
	Scheduler *schedule.Scheduler
	// BlockSize returns the number of tokens in a block, 0 while no worker is
	// known.
	BlockSize func() int
	// IsEagle reports whether the engines hash pairs of tokens: see kv.BlockTokens.
	// It is called for each request; nil means never.
	IsEagle func() bool
	// SharedCache, PrefillLoadEstimator, Observer and Log may be nil.
	SharedCache sharedcache.Cache
	// SharedCacheTimeout bounds one question to SharedCache, for which the request
	// waits; 0 means 250 ms. A cache with a timeout of its own should use a shorter
	// one.
	SharedCacheTimeout   time.Duration
	PrefillLoadEstimator PrefillLoadEstimator
	Observer             Observer
	Log                  *zap.Logger
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
