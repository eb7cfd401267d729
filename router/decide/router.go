package decide

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Router decides which worker a request goes to. Make one with New.
type Router struct {
	config    config.Config
	weights   schedule.Config
	reading   index.Reading
	index     Index
	scheduler *schedule.Scheduler
	blockSize func() int
	eagle     func() bool
	shared    *asker
	estimator PrefillLoadEstimator
	observer  Observer
	log       *zap.Logger

	// predictions predicts from decisions what workers hold, nil without
	// predictions. predictedMembers are the members that predictions knows, under
	// predictionsMu.
	predictions      *approx.Index
	predictionsMu    sync.Mutex
	predictedMembers atomic.Pointer[index.Members]

	// warned is when a failure of the shared cache was last logged, in nanoseconds
	// since start.
	start time.Time
	// warned is the time of the last warning about the shared cache, in nanoseconds
	// since start.
	warned atomic.Int64
	// unbooked counts requests that AddRequest could not book.
	unbooked atomic.Uint64
	// notRecorded counts decisions that could not be recorded in predictions.
	notRecorded atomic.Uint64

	// work holds *work values, so that a decision allocates little.
	work sync.Pool
}

// work is the memory of one decision.
type work struct {
	blocks    blocks
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
		eagle: o.IsEagle, shared: newAsker(&o),
		estimator: o.PrefillLoadEstimator, observer: o.Observer, log: o.Log, start: time.Now(),
	}
	if o.Config != nil {
		r.config = *o.Config
	}
	if r.eagle == nil {
		r.eagle = func() bool { return false }
	}
	if r.observer == nil {
		r.observer = silent{}
	}
	if r.log == nil {
		r.log = zap.NewNop()
	}
	r.weights, r.reading = r.config.Schedule(), r.config.Reading()
	r.warned.Store(-int64(warnInterval))
	r.work.New = func() any { return new(work) }
	return r, r.openPredictions()
}

// Close forgets the predictions. The Router goes on without them.
func (r *Router) Close() error {
	if r.predictions != nil {
		r.predictions.Close()
	}
	return nil
}

// PendingCount returns the number of requests that wait for a worker.
func (r *Router) PendingCount() int { return r.scheduler.PendingCount() }

// PendingTokens returns the sum of the lengths of their prompts.
func (r *Router) PendingTokens() int { return r.scheduler.PendingTokens() }

// RegisterWorkers makes workers known that no publisher announced, each with rank 0
// and no pool. A worker that is known already stays as it is. No publisher tells
// their block size, so BlockSize must know it before a request can go to them. The
// error is index.ErrFull.
func (r *Router) RegisterWorkers(ids map[kv.WorkerID]struct{}) error {
	for id := range ids {
		if first, _ := r.ranks(id); first >= 0 {
			continue
		}
		if err := r.index.SetMember(kv.Worker{ID: id}, 0, true); err != nil {
			return fmt.Errorf("register worker %d: %w", uint64(id), err)
		}
	}
	return nil
}

// UniqueDPRankForWorker returns the rank of a worker that has exactly one.
func (r *Router) UniqueDPRankForWorker(id kv.WorkerID) (kv.DPRank, bool) {
	first, n := r.ranks(id)
	if n != 1 {
		return 0, false
	}
	return r.index.Members().List[first].Worker.Rank, true
}

// DumpEvents visits events that make an empty index equal to the one behind
// decisions, until visit returns false. They are what events told, or the
// predictions without use_kv_events. Predictions beside events are not included. An
// event is valid until visit returns.
func (r *Router) DumpEvents(visit func(e *kvevent.RouterEvent) bool) {
	if r.predictions != nil && !r.config.UseKVEvents {
		r.predictions.Walk(visit)
		return
	}
	r.index.Walk(visit)
}

// Workers returns the number of known workers. The ranks of one worker count once.
func (r *Router) Workers() int { return distinct(r.index.Members()) }

func distinct(m *index.Members) int {
	n := 0
	for i := range m.List {
		if i == 0 || m.List[i].Worker.ID != m.List[i-1].Worker.ID {
			n++
		}
	}
	return n
}
