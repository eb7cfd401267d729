package estimate

import (
	"fmt"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Estimator knows what workers were measured to do. Make one with New.
type Estimator struct {
	opts Options

	mu      sync.Mutex
	workers map[kv.Worker]*worker
	pools   map[uint64]*pool
	models  map[string]*model
	// requests are the prefills that are followed, by id.
	requests map[string]*pending
	// aligned is the list of members that columns has the workers of, by their place;
	// nil for none.
	aligned *index.Members
	columns []column
	start   time.Time // what the times in columns count from
	swept   time.Time // when the requests of all workers were last looked at
	stats   Stats
}

// worker is what is known of one worker.
type worker struct {
	id     kv.Worker
	member int   // its place in Estimator.columns, or notThere
	pool   *pool // nil for none
	model  *model
	// prefill follows its requests, copies is how fast blocks come to its device.
	prefill prefills
	copies  rate
	// waiting is how many requests of others its engine had waiting when it reported
	// last.
	waiting  int
	reported time.Time
}

// pool is what is known of one pool. It is kept while a worker is a member.
type pool struct {
	id         uint64
	members    int
	blockBytes float64
	disk       rate
	// queue is how many blocks waited to be read at the time since; heard is when they
	// were last reported.
	queue        float64
	since, heard time.Time
}

// Stats is a snapshot of an Estimator. Its metrics are labels of two families.
type Stats struct {
	Workers        int    `metric:"workers" help:"Workers known to the estimator."`
	Pools          int    `metric:"pools" help:"Pools known to the estimator."`
	Requests       int    `metric:"requests" help:"Prefills that the estimator follows."`
	Reports        uint64 `metric:"reports" help:"Load reports read."`
	Unknown        uint64 `metric:"reports_unknown" help:"Load reports of unknown owners."`
	Samples        uint64 `metric:"samples" help:"Samples taken."`
	Outliers       uint64 `metric:"outliers" help:"Samples that at first did not count as plausible."`
	Implausible    uint64 `metric:"implausible" help:"Samples refused because no machine is that fast or because they took too long."`
	Abandoned      uint64 `metric:"abandoned" help:"Prefills that ended without a first token."`
	Expired        uint64 `metric:"expired" help:"Prefills of which nothing was heard for five minutes."`
	Unfollowed     uint64 `metric:"unfollowed" help:"Prefills that found no room or whose id was taken."`
	RefusedWorkers uint64 `metric:"refused_workers" help:"Workers that found no room."`
	Missing        uint64 `metric:"missing" help:"Decisions without an estimate because a measure was missing."`
}

// New returns an Estimator that knows nobody yet.
func New(o Options) (*Estimator, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return &Estimator{
		opts: o, start: o.Now(),
		workers: make(map[kv.Worker]*worker), pools: make(map[uint64]*pool), models: make(map[string]*model),
		requests: make(map[string]*pending),
	}, nil
}

// SetWorker makes a worker known: which pool's blocks count for it, 0 for none, and
// which model it serves. What was measured before stays when only these change; a
// worker beyond MaxWorkers is counted, and no estimate is made for it.
func (e *Estimator) SetWorker(w kv.Worker, poolID uint64, modelName string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.workers[w]
	if k == nil {
		if len(e.workers) >= e.opts.MaxWorkers {
			e.stats.RefusedWorkers++
			return
		}
		k = &worker{id: w, member: notThere, copies: rate{reported: true}}
		e.workers[w] = k
		e.aligned = nil // it may be a member
	}
	if k.model == nil || k.model.name != modelName {
		e.leaveModel(k)
		e.joinModel(k, modelName)
	}
	if k.pool == nil && poolID == 0 || k.pool != nil && k.pool.id == poolID {
		return
	}
	e.leavePool(k)
	if poolID == 0 {
		return
	}
	if k.pool = e.pools[poolID]; k.pool == nil {
		k.pool = &pool{id: poolID, disk: rate{reported: true}}
		e.pools[poolID] = k.pool
	}
	k.pool.members++
}

// RemoveWorker forgets a worker and what was learned of it, and its pool with its
// last member. Its pending requests are not followed any more.
func (e *Estimator) RemoveWorker(w kv.Worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.workers[w]
	if k == nil {
		return
	}
	for _, r := range k.prefill.pending {
		delete(e.requests, r.id)
		e.stats.Abandoned++
	}
	e.leavePool(k)
	e.leaveModel(k)
	delete(e.workers, w)
	e.aligned = nil // the columns name it
}

func (e *Estimator) leavePool(k *worker) {
	if k.pool == nil {
		return
	}
	if k.pool.members--; k.pool.members == 0 {
		delete(e.pools, k.pool.id)
	}
	k.pool = nil
}

// Stats is a snapshot.
func (e *Estimator) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Workers, s.Pools, s.Requests = len(e.workers), len(e.pools), len(e.requests)
	return s
}

func (w *worker) String() string { return fmt.Sprintf("worker %s", w.id) }
