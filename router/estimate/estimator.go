package estimate

import (
	"fmt"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Estimator predicts what a request takes on each worker. Make one with New.
type Estimator struct {
	opts Options

	mu      sync.Mutex
	workers map[kv.Worker]*worker
	pools   map[uint64]*pool
	models  map[string]*model
	// requests are the followed requests by id.
	requests map[string]*request
	// alignedTo is the list whose order columns has. nil makes the next decision
	// rebuild them.
	alignedTo *index.Members
	columns   []column
	start     time.Time // times in columns count from here
	expiredAt time.Time // when all workers' requests were last checked for expiry
	// booked counts requests, and explored those that were sent to learn about a worker.
	booked, explored uint64
	stats            Stats
}

// worker holds the measures of one worker.
type worker struct {
	id     kv.Worker
	member int   // its position in Estimator.columns, or notMember
	pool   *pool // nil for none
	model  *model
	// prefill and decode follow the worker's requests and learn its speed. copyRate is
	// the rate at which blocks reach the device, in bytes.
	prefill  prefills
	decode   decodes
	copyRate rate
	// arrivals are the requests in a second, and busy the seconds of their prompts.
	arrivals, busy flow
	// budget is the number of tokens of a step, 0 when unknown.
	budget float64
	// waitingElsewhere and runningElsewhere are the requests that wait and run in the engine and that this
	// router did not send. The last report came at reportedAt. used is the share of the device in use.
	waitingElsewhere, runningElsewhere elsewhere
	used                               float64
	reportedAt                         time.Time
	// explores is true when the last price was the optimistic one. exploring is the request that was
	// sent for that and has no first token yet.
	explores  bool
	exploring *request
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
	Requests       int    `metric:"requests" help:"Requests that the estimator follows."`
	Reports        uint64 `metric:"reports" help:"Load reports read."`
	Unknown        uint64 `metric:"reports_unknown" help:"Load reports of unknown owners."`
	Explored       uint64 `metric:"explored" help:"Requests sent to a worker whose speed is uncertain, to learn it."`
	Samples        uint64 `metric:"samples" help:"Samples taken."`
	Outliers       uint64 `metric:"outliers" help:"Samples far off the median when they came."`
	Implausible    uint64 `metric:"implausible" help:"Samples refused as impossibly fast or long."`
	Abandoned      uint64 `metric:"abandoned" help:"Prefills that ended without a first token."`
	Presumed       uint64 `metric:"presumed" help:"Requests whose first token was presumed: a block of the answer came, or later requests had their first token."`
	Expired        uint64 `metric:"expired" help:"Requests silent for too long."`
	Unfollowed     uint64 `metric:"unfollowed" help:"Requests not followed: unknown worker, no room, or id in use."`
	RefusedWorkers uint64 `metric:"refused_workers" help:"Workers refused above the bound of known workers."`
	Missing        uint64 `metric:"missing" help:"Decisions without a price because a measure was missing."`
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
		requests: make(map[string]*request),
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
	for _, r := range w.decode.running {
		delete(e.requests, r.id)
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
	s.Workers, s.Pools, s.Requests, s.Explored = len(e.workers), len(e.pools), len(e.requests), e.explored
	return s
}

func (w *worker) String() string { return fmt.Sprintf("worker %s", w.id) }
