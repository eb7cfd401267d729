package schedule

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Queue keeps the requests that wait for a worker that is not busy. It has no lock and no
// clock. Its calls must not overlap.
//
// Requests that may go to the same workers form a lane. The order within a lane is strict. A
// request never waits for a request of another lane. Next returns the first request, by
// order, among the first requests of the lanes with a free worker.
//
// A lane without a free worker sleeps until Released or WakeAll wakes it. A sleeping lane
// costs nothing: the release of a worker touches that worker's lanes only.
type Queue struct {
	o     QueueOptions
	lanes map[laneKey]*lane
	// awake are the lanes that may have a free worker, ordered by their first requests.
	awake laneHeap
	// lanesByAllowed has the lanes of each worker in a set of allowed workers. lanesForAll has
	// the lanes without such a set.
	lanesByAllowed map[kv.WorkerID]map[*lane]struct{}
	lanesForAll    map[*lane]struct{}
	// allowedIDs is the sum of the sizes of the sets of allowed workers.
	allowedIDs int
	workers    int
	pushes     uint64
	stats      QueueStats
}

// Item is a request that may have to wait. The sets that the item refers to must not change
// while the item waits.
type Item struct {
	// StrictPriority orders requests, higher first. Among equals the earlier arrival goes
	// first. PriorityJump, in seconds and at least 0, moves the arrival back.
	StrictPriority uint32
	PriorityJump   float64
	// Arrival is in seconds by any clock that all items share.
	Arrival float64
	// Tokens is the length of the prompt. CachedTokens are the tokens that the best worker
	// has cached.
	Tokens, CachedTokens int
	// Untracked says that the prompt is no prefill load. Such an item never waits.
	Untracked bool
	// Pinned is the only worker that may serve the item. Without Pinned any worker in Allowed
	// with all RequiredTaints may serve it. A nil Allowed has all workers.
	Pinned         *kv.Worker
	Allowed        map[kv.WorkerID]struct{}
	RequiredTaints []string
	// Value is for the caller.
	Value any

	// key is the key of the item's lane if keyed is true. lane is nil unless the item waits.
	key      laneKey
	prepared bool
	lane     *lane
	// score is PriorityJump less Arrival, in seconds. pushNumber numbers the calls of Push.
	// laneIndex is the position in lane.waiting.
	score      float64
	pushNumber uint64
	laneIndex  int
}

// before reports whether item i gets a worker before item j: by higher priority, then by
// higher score, which is an earlier arrival, then in the order of Push.
func (i *Item) before(j *Item) bool {
	if i.StrictPriority != j.StrictPriority {
		return i.StrictPriority > j.StrictPriority
	}
	if i.score != j.score {
		return i.score > j.score
	}
	return i.pushNumber < j.pushNumber
}

// QueueStats is a snapshot of a queue.
type QueueStats struct {
	Pending      int    `metric:"queue_pending_requests" help:"Requests waiting for a worker."`
	Tokens       int    `metric:"queue_pending_isl_tokens" help:"Prompt tokens of the waiting requests."`
	CachedTokens int    `metric:"queue_pending_cached_tokens" help:"Prompt tokens of the waiting requests that a worker has cached."`
	Lanes        int    `metric:"-"`
	Queued       uint64 `metric:"queue_queued" help:"Requests that waited or wait."`
	Dispatched   uint64 `metric:"queue_dispatched" help:"Requests that waited and got a worker."`
	Retracted    uint64 `metric:"queue_retracted" help:"Requests whose caller left while they waited."`
	// Rejected requests reached a limit. They share a metric, with the limit as its label.
	RejectedRequests     uint64 `metric:"-"`
	RejectedTokens       uint64 `metric:"-"`
	RejectedCachedTokens uint64 `metric:"-"`
	RejectedAllowed      uint64 `metric:"-"`
}

// NewQueue returns an empty queue. The error names the option that is out of range.
func NewQueue(o QueueOptions) (*Queue, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	return &Queue{
		o:              o.withDefaults(),
		lanes:          make(map[laneKey]*lane),
		lanesByAllowed: make(map[kv.WorkerID]map[*lane]struct{}),
		lanesForAll:    make(map[*lane]struct{}),
	}, nil
}

// Options returns the queue's options.
func (q *Queue) Options() *QueueOptions { return &q.o }

// SetWorkers sets the number of workers, which multiplies the limits.
func (q *Queue) SetWorkers(n int) { q.workers = n }

// Waits reports whether an arriving request has to wait: requests that may go to the same
// workers wait already, or busy reports that all its workers are busy. The caller then calls
// Push. Otherwise it decides at once.
func (q *Queue) Waits(i *Item, busy func(*Item) bool) bool {
	if !q.o.Enabled() || i.Untracked {
		return false
	}
	if q.stats.Pending > 0 && q.lanes[i.laneKey()] != nil {
		return true
	}
	return busy(i)
}

// Push makes a request wait in its lane, the requests that may go to the same workers, until
// Next returns it or Remove removes it. The error is a *QueueRejection when a limit is
// reached. An item may be in one queue at a time.
func (q *Queue) Push(i *Item) error {
	if r := q.rejection(i); r != nil {
		return r
	}
	q.pushes++
	i.pushNumber = q.pushes
	i.score = -i.Arrival
	if i.PriorityJump > 0 {
		i.score += i.PriorityJump
	}
	l := q.laneFor(i)
	i.lane = l
	heap.Push(&l.waiting, i)
	if len(l.waiting) == 1 { // Next must try a new lane once
		q.wake(l)
	}
	q.fix(l) // i may be the lane's first request now
	q.count(i, 1)
	q.stats.Queued++
	return nil
}

// rejection returns nil if the request may wait, or else the limit that refuses it. It counts
// the refusal. Limits per worker come first, then the bounds on the memory of the queue. A
// lane is the requests that may go to the same workers.
func (q *Queue) rejection(i *Item) *QueueRejection {
	for _, l := range []struct {
		kind               QueueLimit
		current, perWorker int
		rejected           *uint64
	}{
		{LimitRequests, q.stats.Pending, q.o.Limits.Requests, &q.stats.RejectedRequests},
		{LimitTokens, q.stats.Tokens, q.o.Limits.Tokens, &q.stats.RejectedTokens},
		{LimitCachedTokens, q.stats.CachedTokens, q.o.Limits.CachedTokens, &q.stats.RejectedCachedTokens},
	} {
		if l.perWorker == 0 {
			continue
		}
		if limit := times(l.perWorker, q.workers); l.current >= limit {
			*l.rejected++
			return &QueueRejection{Kind: l.kind, Current: l.current, Limit: limit}
		}
	}
	switch {
	case q.stats.Pending >= q.o.MaxPending:
		q.stats.RejectedRequests++
		return &QueueRejection{Kind: LimitRequests, Current: q.stats.Pending, Limit: q.o.MaxPending}
	case q.stats.Tokens >= q.o.MaxTokens:
		q.stats.RejectedTokens++
		return &QueueRejection{Kind: LimitTokens, Current: q.stats.Tokens, Limit: q.o.MaxTokens}
	// Requests with the same sets share a lane and its memory, so only a new lane counts.
	case i.Pinned == nil && len(i.Allowed) > q.o.MaxAllowed-q.allowedIDs && q.lanes[i.laneKey()] == nil:
		q.stats.RejectedAllowed++
		return &QueueRejection{Kind: LimitAllowed, Current: q.allowedIDs, Limit: q.o.MaxAllowed}
	}
	return nil
}

// times returns the product of a positive number and a count, at most MaxInt.
func times(n, count int) int {
	if count > math.MaxInt/n {
		return math.MaxInt
	}
	return n * count
}

// count adds an item to the gauges of waiting requests with sign 1, and subtracts it with
// sign -1.
func (q *Queue) count(i *Item, sign int) {
	q.stats.Pending += sign
	q.stats.Tokens += sign * i.Tokens
	q.stats.CachedTokens += sign * i.CachedTokens
}

// Next removes and returns the first waiting request with a free worker, or nil. busy reports
// whether all workers of an item are busy. Requests that may go to the same workers form a
// lane, and Next asks for the first request of each awake lane only. busy must return false
// for an item without eligible workers, so that its caller gets the error.
func (q *Queue) Next(busy func(*Item) bool) *Item {
	for len(q.awake) > 0 {
		l := q.awake[0]
		i := l.waiting[0]
		if busy(i) {
			heap.Pop(&q.awake) // the lane sleeps until Released or WakeAll wakes it
			continue
		}
		q.remove(i)
		q.stats.Dispatched++
		return i
	}
	return nil
}

// Remove ends the wait of a request whose caller has left, and reports whether the request
// was waiting.
func (q *Queue) Remove(i *Item) bool {
	if i.lane == nil { // Next has returned it
		return false
	}
	q.remove(i)
	q.stats.Retracted++
	return true
}

// remove takes a waiting item out of its lane, the requests that may go to the same workers.
// It removes a lane that becomes empty.
func (q *Queue) remove(i *Item) {
	l := i.lane
	heap.Remove(&l.waiting, i.laneIndex)
	i.lane, i.key, i.prepared = nil, laneKey{}, false
	q.count(i, -1)
	if len(l.waiting) == 0 {
		q.dropLane(l)
		return
	}
	q.fix(l)
}

// Len returns the number of requests that wait.
func (q *Queue) Len() int { return q.stats.Pending }

// Tokens returns the sum of the lengths of the prompts that wait.
func (q *Queue) Tokens() int { return q.stats.Tokens }

// Stats returns the gauges and counters.
func (q *Queue) Stats() QueueStats {
	s := q.stats
	s.Lanes = len(q.lanes)
	return s
}

// QueueOptions say when requests wait and how many. With the zero value no request waits.
type QueueOptions struct {
	// A worker is busy while its pending prefill tokens exceed Threshold times
	// MaxBatchedTokens, or exceed ThresholdTokens. Threshold is above 0. Nil is no threshold.
	// Without both no request waits.
	Threshold       *float64
	ThresholdTokens *int64
	// MaxPending bounds the waiting requests; 0 means 16,384. MaxTokens bounds the sum of
	// their prompts; 0 means 1<<28. A request is refused once a bound is reached.
	MaxPending, MaxTokens int
	// MaxAllowed bounds the sum of the sizes of the sets of allowed workers; 0 means 1<<20.
	// Requests of one lane count once.
	MaxAllowed int
	// Limits refuse requests earlier.
	Limits QueueLimits
}

// QueueLimits are limits per worker: each is multiplied by the number of workers. A request
// is refused once a limit is reached, so the last request may exceed it. 0 is no limit.
type QueueLimits struct {
	// Requests bounds the waiting requests, Tokens their prompt tokens, and CachedTokens the
	// tokens that a worker has cached.
	Requests, Tokens, CachedTokens int
}

// Validate reports the first option that is out of range.
func (o *QueueOptions) Validate() error {
	if t := o.Threshold; t != nil && (!(*t > 0) || math.IsInf(*t, 0)) {
		return fmt.Errorf("queue threshold: %v is not a finite number above 0", *t)
	}
	if t := o.ThresholdTokens; t != nil && *t < 0 {
		return fmt.Errorf("queue threshold tokens: %d is negative", *t)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max pending requests", o.MaxPending},
		{"max pending tokens", o.MaxTokens},
		{"max allowed workers", o.MaxAllowed},
		{"request limit per worker", o.Limits.Requests},
		{"token limit per worker", o.Limits.Tokens},
		{"cached token limit per worker", o.Limits.CachedTokens},
	} {
		if f.value < 0 {
			return fmt.Errorf("queue %s: %d is negative", f.name, f.value)
		}
	}
	return nil
}

// withDefaults returns o with defaults in place of zero bounds.
func (o QueueOptions) withDefaults() QueueOptions {
	o.MaxPending = cmp.Or(o.MaxPending, 1<<14)
	o.MaxTokens = cmp.Or(o.MaxTokens, 1<<28)
	o.MaxAllowed = cmp.Or(o.MaxAllowed, 1<<20)
	return o
}

// Enabled reports whether requests may wait.
func (o *QueueOptions) Enabled() bool { return o.Threshold != nil || o.ThresholdTokens != nil }

// Busy reports whether requests wait rather than go to a worker with that many pending prefill
// tokens. maxBatchedTokens is WorkerConfig.MaxBatchedTokens, 0 when unknown. A worker with an
// unknown value is practically never busy by Threshold.
func (o *QueueOptions) Busy(prefillTokens int64, maxBatchedTokens uint64) bool {
	if o.ThresholdTokens != nil && prefillTokens > *o.ThresholdTokens {
		return true
	}
	maxBatchedTokens = cmp.Or(maxBatchedTokens, unknownBatch)
	return o.Threshold != nil && float64(prefillTokens) > *o.Threshold*float64(maxBatchedTokens)
}

// ErrQueueRejected says that a request would have to wait and the queue is full. The error
// that wraps it is a *QueueRejection.
var ErrQueueRejected = errors.New("queue is full")

// QueueLimit names a limit of the queue.
type QueueLimit string

// Queue limits, as clients see them.
const (
	LimitRequests     QueueLimit = "requests"
	LimitTokens       QueueLimit = "raw_isl_tokens"
	LimitCachedTokens QueueLimit = "cached_tokens"
	LimitAllowed      QueueLimit = "allowed_worker_ids"
)

// QueueRejection says which limit refused a request.
type QueueRejection struct {
	Kind QueueLimit `json:"limit_kind"`
	// Current is the amount that waits, Limit the amount that may wait.
	Current int `json:"current"`
	Limit   int `json:"limit"`
}

// Error names the limit and both amounts.
func (r *QueueRejection) Error() string {
	return fmt.Sprintf("%v: %s: %d wait, the limit is %d", ErrQueueRejected, r.Kind, r.Current, r.Limit)
}

// Unwrap returns ErrQueueRejected.
func (r *QueueRejection) Unwrap() error { return ErrQueueRejected }
