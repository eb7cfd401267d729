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

// Router decides which worker a request should go to. Make one with New.
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

	// guess remembers decisions; nil where events tell enough. guessed are the
	// members that it was last told of, under guessing.
	guess    *approx.Index
	guessing sync.Mutex
	guessed  atomic.Pointer[index.Members]

	// warned is when a failure of the shared cache was last logged, in nanoseconds
	// since start.
	start  time.Time
	warned atomic.Int64
	// unbooked counts requests that AddRequest could not book.
	unbooked atomic.Uint64
	// unremembered counts decisions that are not in guess.
	unremembered atomic.Uint64

	// work holds *work values, so that deciding allocates little.
	work sync.Pool
}

// work is the memory of one decision.
type work struct {
	blocks   blocks
	matches  index.Matches
	guess    index.Matches
	sequence []kv.SequenceHash
	explain  explanation
}

// New returns a router over an index and a scheduler.
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
	return r, r.openGuess()
}

// Close forgets the remembered decisions. The router goes on without them.
func (r *Router) Close() error {
	if r.guess != nil {
		r.guess.Close()
	}
	return nil
}

// PendingCount is the number of requests that wait for a worker.
func (r *Router) PendingCount() int { return r.scheduler.PendingCount() }

// PendingTokens is the sum of the lengths of their prompts.
func (r *Router) PendingTokens() int { return r.scheduler.PendingTokens() }

// RegisterWorkers makes workers known that nobody announced, each with rank 0 and no
// pool. One that is known already stays as it is. As nobody says the size of their
// blocks, BlockSize has to know it before a request can go to them. The error is index.ErrFull.
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

// UniqueDPRankForWorker is the rank of a worker that has exactly one.
func (r *Router) UniqueDPRankForWorker(id kv.WorkerID) (kv.DPRank, bool) {
	first, n := r.ranks(id)
	if n != 1 {
		return 0, false
	}
	return r.index.Members().List[first].Worker.Rank, true
}

// DumpEvents visits events that, applied to an empty index, make it equal to the one
// that decisions go by, until visit returns false: what events told, or without
// use_kv_events the remembered decisions. Those that router_predicted_ttl_secs adds
// beside events are not among them. An event is valid until visit returns.
func (r *Router) DumpEvents(visit func(e *kvevent.RouterEvent) bool) {
	if r.guess != nil && !r.config.UseKVEvents {
		r.guess.Walk(visit)
		return
	}
	r.index.Walk(visit)
}

// Workers is the number of workers that are known; ranks of one count once.
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
