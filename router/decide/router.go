package decide

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Router decides which worker a request goes to. Make one with New.
type Router struct {
	config      config.Config
	weights     schedule.Config
	reading     index.Reading
	index       Index
	scheduler   *schedule.Scheduler
	blockSize   func() int
	hashesPairs func() bool
	sharedCache *asker
	estimator   PrefillLoadEstimator
	observer    Observer
	log         *zap.Logger

	// allWorkers predicts what workers hold, silentWorkers what those hold that isSilent names. Both
	// are nil without such predictions.
	allWorkers, silentWorkers *predictor
	isSilent                  func(kv.Worker) bool

	start time.Time
	// lastWarned is when a failure of the shared cache was last logged, in nanoseconds since
	// start.
	lastWarned atomic.Int64
	// lastExplained is when a decision was last logged at info level, in nanoseconds since start.
	lastExplained atomic.Int64
	// unbooked counts requests that AddRequest could not book.
	unbooked atomic.Uint64
	// notRecorded counts decisions that could not be recorded in predictions.
	notRecorded atomic.Uint64

	// scratch has *scratch values, so that a decision allocates little.
	scratch sync.Pool
}

// scratch is the memory of one decision.
type scratch struct {
	blocks    blocks
	tokens    int // of the prompt
	matches   index.Matches
	predicted index.Matches
	sequence  []kv.SequenceHash
	explain   explanation
}

// New returns a Router. The error names the option that is missing or out of range.
func New(o Options) (*Router, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("decide: %w", err)
	}
	r := &Router{
		config: config.Default(), index: o.Index, scheduler: o.Scheduler, blockSize: o.BlockSize,
		hashesPairs: o.IsEagle, isSilent: o.Silent, sharedCache: newAsker(&o),
		estimator: o.PrefillLoadEstimator, observer: o.Observer, log: o.Log, start: time.Now(),
	}
	if o.Config != nil {
		r.config = *o.Config
	}
	if r.hashesPairs == nil {
		r.hashesPairs = func() bool { return false }
	}
	if r.observer == nil {
		r.observer = silent{}
	}
	r.log = cmp.Or(r.log, zap.NewNop())
	r.weights, r.reading = r.config.Schedule(), r.config.Reading()
	// The first failure and the first decision are logged at once.
	r.lastWarned.Store(-int64(warnInterval))
	r.lastExplained.Store(-int64(explainInterval))
	r.scratch.New = func() any { return new(scratch) }
	return r, r.openPredictions()
}

// Close drops the predictions. The Router then decides without them.
func (r *Router) Close() error {
	r.closePredictions()
	return nil
}

// PendingCount returns the number of requests that wait for a worker.
func (r *Router) PendingCount() int { return r.scheduler.PendingCount() }

// PendingTokens returns the sum of the lengths of their prompts.
func (r *Router) PendingTokens() int { return r.scheduler.PendingTokens() }

// Ranks returns the number of ranks of a worker, 0 for an unknown worker.
func (r *Router) Ranks(id kv.WorkerID) int { return len(r.ranks(id)) }

// UniqueDPRankForWorker returns the data-parallel rank of a worker that has exactly one. ok
// is false for a worker with several ranks and for an unknown worker.
func (r *Router) UniqueDPRankForWorker(id kv.WorkerID) (rank kv.DPRank, ok bool) {
	ranks := r.ranks(id)
	if len(ranks) != 1 {
		return 0, false
	}
	return ranks[0].Worker.Rank, true
}

// DumpEvents visits events that make an empty index equal to the Router's, until visit
// returns false. Without use_kv_events it visits the predictions. An event is valid until
// visit returns.
func (r *Router) DumpEvents(visit func(e *kvevent.RouterEvent) bool) {
	if r.allWorkers != nil && !r.config.UseKVEvents {
		r.allWorkers.approx.Walk(visit)
		return
	}
	r.index.Walk(visit)
}

// Workers returns the number of known workers. The ranks of one worker count once.
func (r *Router) Workers() int { return distinct(r.index.Members()) }

// distinct returns the number of workers in a list, in which each rank of a worker is a
// member. The list is ordered by worker.
func distinct(m *index.Members) int {
	n := 0
	for i := range m.List {
		if i == 0 || m.List[i].Worker.ID != m.List[i-1].Worker.ID {
			n++
		}
	}
	return n
}
