package estimate

import (
	"fmt"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Estimator predicts times to the first token. Make one with New.
type Estimator struct {
	opts Options

	mu      sync.Mutex
	workers map[kv.Worker]*worker
	pools   map[uint64]*pool
	models  map[string]*model
	// requests are the followed prefills by id.
	requests map[string]*pending
	// aligned is the list of members that columns follow, nil for none.
	aligned *index.Members
	columns []column
	start   time.Time // times in columns count from here
	swept   time.Time // when all workers' requests were last checked for expiry
	stats   Stats
}

// worker is what is known of one worker.
type worker struct {
	id     kv.Worker
	member int   // its number in Estimator.columns, or notMember
	pool   *pool // nil for none
	model  *model
	// prefill follows the worker's requests and learns its prefill rate. copies is
	// the rate at which blocks reach the device.
	prefill prefills
	copies  rate
	// waiting is how many requests that this router did not send waited in the engine at the
	// last report.
	waiting  int
	reported time.Time
}

// pool is what is known of one pool. It is kept while a worker is a member.
type pool struct {
	id         uint64
	members    int
	blockBytes float64
	disk       rate
	// queue is how many blocks waited to be read at time since. heard is the time
	// of the last report.
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

// New returns an Estimator without workers. The error names the option that is out
// of range.
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

// SetWorker makes a worker known, with its pool (0 for none) and its model. Earlier
// measures stay when these change. A worker beyond MaxWorkers is counted and gets
// no estimate.
func (e *Estimator) SetWorker(w kv.Worker, poolID uint64, modelName string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.workers[w]
	if k == nil {
		if len(e.workers) >= e.opts.MaxWorkers {
			e.stats.RefusedWorkers++
			return
		}
		k = &worker{id: w, member: notMember, copies: rate{reported: true}}
		e.workers[w] = k
		e.aligned = nil // the worker may be a member
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

// RemoveWorker forgets a worker with its measures and pending requests, and a pool
// with its last member.
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
	e.aligned = nil // the columns refer to the worker
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

// Stats returns a snapshot.
func (e *Estimator) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Workers, s.Pools, s.Requests = len(e.workers), len(e.pools), len(e.requests)
	return s
}

func (w *worker) String() string { return fmt.Sprintf("worker %s", w.id) }
