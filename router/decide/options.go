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
	// the worker holds.
	ErrNotRecorded = errors.New("routing decisions are recorded only without use_kv_events, with router_predicted_ttl_secs, or for a worker without events")
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

// PrefillLoadEstimator predicts how long a prefill takes. The prefill's load shrinks over
// that time.
type PrefillLoadEstimator interface {
	// PredictPrefillDuration returns the time for a batch of prompts, each with effectiveISL
	// tokens to compute after prefix cached tokens. After an error, which is logged, the load
	// stays until the prefill is marked complete.
	PredictPrefillDuration(batch, effectiveISL, prefix int) (time.Duration, error)
}

// Timings are the durations of the parts of one decision. FindMatches and
// SharedCache overlap.
type Timings struct {
	BlockHashing, SequenceHashing, FindMatches, Scheduling, Total time.Duration
	// SharedCache is 0 without a query to a shared cache.
	SharedCache time.Duration
}

// Observer follows decisions and the life of requests. The deciding goroutines call its
// methods. The methods must not block and must keep no argument.
type Observer interface {
	// Decided is called after each decision.
	Decided(d *Decision)
	// SharedCacheFailed is called when a shared cache did not answer.
	SharedCacheFailed()
	// PrefillCompleted and Freed are called for booked requests.
	PrefillCompleted(id string)
	Freed(id string)
	// OutputBlock is called when a booked request has a further block of output.
	OutputBlock(id string)
	// Added is called after AddRequest has booked a request. cached of its blocks, of
	// blockSize tokens each, need no computing.
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
	// BlockSize returns the number of tokens in a block, 0 while it is unknown.
	BlockSize func() int
	// IsEagle reports whether the engines hash pairs of tokens: see kv.BlockTokens.
	// It is called for each request; nil means never.
	IsEagle func() bool
	// Silent reports whether a worker publishes no events, so that decisions alone can tell
	// what it holds. It must not block. nil means that every worker publishes events.
	Silent func(kv.Worker) bool
	// SharedCache, PrefillLoadEstimator, Observer and Log may be nil.
	SharedCache sharedcache.Cache
	// SharedCacheTimeout bounds one query to SharedCache; 0 means 250 ms. The request waits
	// for the query. A cache's own timeout should be shorter.
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

// silent is an Observer that does nothing.
type silent struct{}

func (silent) Decided(*Decision)       {}
func (silent) SharedCacheFailed()      {}
func (silent) PrefillCompleted(string) {}
func (silent) Freed(string)            {}
func (silent) OutputBlock(string)      {}

func (silent) Added(*Query, kv.Worker, int, int) {}
