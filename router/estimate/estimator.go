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
	// alignedTo is the list whose order columns has. nil makes the next decision
	// rebuild them.
	alignedTo *index.Members
	columns   []column
	start     time.Time // times in columns count from here
	expiredAt time.Time // when all workers' requests were last checked for expiry
	stats     Stats
}

// worker holds the measures of one worker.
type worker struct {
	id     kv.Worker
	member int   // its position in Estimator.columns, or notMember
	pool   *pool // nil for none
	model  *model
	// prefill follows the worker's requests and learns its prefill rate. copyRate is
	// the rate at which blocks reach the device, in bytes.
	prefill  prefills
	copyRate rate
	// queuedElsewhere is how many requests from elsewhere waited in the engine at the last
	// report, reportedAt. This router did not send them.
	queuedElsewhere int
	reportedAt      time.Time
}

// pool holds the measures of one pool. The last member to leave removes the pool.
type pool struct {
	id         uint64
	members    int
	blockBytes float64
	diskRate   rate
	// queue is how many blocks waited to be read at queueAt. reportedAt is the time
	// of the last report.
	queue               float64
	queueAt, reportedAt time.Time
}

// Stats is a snapshot of an Estimator. Its metrics are labels of two families.
type Stats struct {
	Workers        int    `metric:"workers" help:"Workers known to the estimator."`
	Pools          int    `metric:"pools" help:"Pools known to the estimator."`
	Requests       int    `metric:"requests" help:"Prefills that the estimator follows."`
	Reports        uint64 `metric:"reports" help:"Load reports read."`
	Unknown        uint64 `metric:"reports_unknown" help:"Load reports of unknown owners."`
	Samples        uint64 `metric:"samples" help:"Samples taken."`
	Outliers       uint64 `metric:"outliers" help:"Samples far off the median when they came."`
	Implausible    uint64 `metric:"implausible" help:"Samples refused as impossibly fast or long."`
	Abandoned      uint64 `metric:"abandoned" help:"Prefills that ended without a first token."`
	Expired        uint64 `metric:"expired" help:"Prefills silent for five minutes."`
	Unfollowed     uint64 `metric:"unfollowed" help:"Prefills not followed: unknown worker, no room, or id in use."`
	RefusedWorkers uint64 `metric:"refused_workers" help:"Workers refused above the bound of known workers."`
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

// SetWorker adds a worker, or changes its pool (0 for none) and its model. A change
// keeps the worker's measures. A worker beyond MaxWorkers is counted and gets no
// estimate.
func (e *Estimator) SetWorker(id kv.Worker, poolID uint64, modelName string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.workers[id]
	if w == nil {
		if len(e.workers) >= e.opts.MaxWorkers {
			e.stats.RefusedWorkers++
			return
		}
		w = &worker{id: id, member: notMember, copyRate: rate{reported: true}}
		e.workers[id] = w
		e.alignedTo = nil // the next decision gives the worker a column
	}
	if w.model == nil || w.model.name != modelName {
		e.leaveModel(w)
		e.joinModel(w, modelName)
	}
	if w.pool == nil && poolID == 0 || w.pool != nil && w.pool.id == poolID {
		return // the pool is the same
	}
	e.leavePool(w)
	if poolID == 0 {
		return
	}
	if w.pool = e.pools[poolID]; w.pool == nil {
		w.pool = &pool{id: poolID, diskRate: rate{reported: true}}
		e.pools[poolID] = w.pool
	}
	w.pool.members++
}

// RemoveWorker removes a worker with its measures and pending requests. A pool goes
// with its last member.
func (e *Estimator) RemoveWorker(id kv.Worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.workers[id]
	if w == nil {
		return
	}
	for _, r := range w.prefill.pending {
		delete(e.requests, r.id)
		e.stats.Abandoned++
	}
	e.leavePool(w)
	e.leaveModel(w)
	delete(e.workers, id)
	e.alignedTo = nil // the next decision rebuilds the columns, which refer to the worker
}

// leavePool takes a worker out of its pool, if any.
func (e *Estimator) leavePool(w *worker) {
	if w.pool == nil {
		return
	}
	if w.pool.members--; w.pool.members == 0 {
		delete(e.pools, w.pool.id)
	}
	w.pool = nil
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
