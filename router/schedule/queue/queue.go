package queue

import (
	"container/heap"
	"container/list"
	"fmt"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/fairshare"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Queue keeps the requests that wait for a worker that is not busy. It has no lock and no
// clock. Its calls must not overlap.
//
// Requests of one class that may go to the same workers form a lane. The order within a lane is
// strict. A request never waits for a request of another lane of its class. Of each class the first
// request goes next, by order, among the first requests of the lanes with a free worker. Next
// chooses among the classes by deficit round robin.
//
// A request that has a free worker may wait for a better one, which is busy: the favourite. Requests
// with the same favourite form a lane that only the release of that worker or WakeAll wakes. They have
// a claim to the favourite: see Claims.
//
// Requests that have waited for Options.MaxWait are overdue. They form lanes of their own, whose workers
// may be busy.
//
// A lane without a free worker sleeps until Released or WakeAll wakes it. A sleeping lane
// costs nothing: the release of a worker touches that worker's lanes only.
type Queue struct {
	o       Options
	classes []*classQueue
	// ring has the classes with waiting requests.
	ring  fairshare.Ring[*classQueue]
	lanes map[laneKey]*lane
	// held are the lanes with a favourite.
	held map[*lane]struct{}
	// arrivals are the waiting items that are not overdue, in the order of Push.
	arrivals list.List
	// lanesByWorker has the lanes of each pinned or favourite worker, lanesByAllowed those of each
	// worker in a set of allowed workers, and lanesForAll all others.
	lanesByWorker  map[kv.Worker]map[*lane]struct{}
	lanesByAllowed map[kv.WorkerID]map[*lane]struct{}
	lanesForAll    map[*lane]struct{}
	// allowedIDs is the sum of the sizes of the sets of allowed workers.
	allowedIDs int
	workers    int
	pushes     uint64
	stats      Stats
}

// Item is a request that may have to wait. The sets that the item refers to must not change
// while the item waits.
type Item struct {
	// StrictPriority orders requests, higher first. Among equals the earlier arrival goes
	// first. PriorityJump, in seconds and at least 0, moves the arrival back.
	StrictPriority uint32
	PriorityJump   float64
	// Arrival is in seconds by any clock that all items share. Deadline is the time from there to the
	// item's deadline, 0 for that of its class.
	Arrival  float64
	Deadline time.Duration
	// Class is the number of the item's class in Options.
	Class int
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
	// Favourite is a busy worker that the item waits for although another one is free, because the wait costs
	// less than the free one. An item with a favourite is held. The prompt tokens that it has to compute are
	// its claim to the favourite: items that go behind it count them as load there.
	Favourite *kv.Worker
	// Overdue is true when the item has waited for Options.MaxWait. The queue sets it.
	Overdue bool
	// Value is for the caller.
	Value any

	// key is the key of the item's lane if keyed is true. lane is nil unless the item waits.
	key      laneKey
	prepared bool
	lane     *lane
	// score orders items, higher first: see Discipline. pushNumber numbers the calls of Push.
	// laneIndex is the position in lane.waiting, arrival that in Queue.arrivals or nil.
	score      float64
	pushNumber uint64
	laneIndex  int
	arrival    *list.Element
}

// before reports whether item i gets a worker before item j: by higher priority, then by
// higher score, then in the order of Push. Both items are of one class.
func (i *Item) before(j *Item) bool {
	if i.StrictPriority != j.StrictPriority {
		return i.StrictPriority > j.StrictPriority
	}
	if i.score != j.score {
		return i.score > j.score
	}
	return i.pushNumber < j.pushNumber
}

// Stats is a snapshot of a queue.
type Stats struct {
	Pending      int    `metric:"queue_pending_requests" help:"Requests waiting for a worker."`
	Tokens       int    `metric:"queue_pending_isl_tokens" help:"Prompt tokens of the waiting requests."`
	CachedTokens int    `metric:"queue_pending_cached_tokens" help:"Prompt tokens of the waiting requests that a worker has cached."`
	Lanes        int    `metric:"-"`
	Queued       uint64 `metric:"queue_queued" help:"Requests that waited or wait."`
	Dispatched   uint64 `metric:"queue_dispatched" help:"Requests that waited and got a worker."`
	Retracted    uint64 `metric:"queue_retracted" help:"Requests whose caller left while they waited."`
	Overdue      uint64 `metric:"queue_overdue" help:"Requests that waited as long as they may for a free worker."`
	Held         uint64 `metric:"queue_held" help:"Requests that wait for a busy worker whose price is below that of every free one."`
	// Rejected requests reached a limit. They share a metric, with the limit as its label.
	RejectedRequests     uint64 `metric:"-"`
	RejectedTokens       uint64 `metric:"-"`
	RejectedCachedTokens uint64 `metric:"-"`
	RejectedAllowed      uint64 `metric:"-"`
}

// New returns an empty queue. The error names the option that is out of range.
func New(o Options) (*Queue, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q := &Queue{
		o:              o.withDefaults(),
		lanes:          make(map[laneKey]*lane),
		lanesByWorker:  make(map[kv.Worker]map[*lane]struct{}),
		lanesByAllowed: make(map[kv.WorkerID]map[*lane]struct{}),
		lanesForAll:    make(map[*lane]struct{}),
		held:           make(map[*lane]struct{}),
	}
	for k := range q.o.Profile.Classes {
		c := &classQueue{Class: &q.o.Profile.Classes[k], number: k}
		c.share = fairshare.Member[*classQueue]{Value: c, Quantum: c.Quantum}
		q.classes = append(q.classes, c)
	}
	return q, nil
}

// Options returns the queue's options.
func (q *Queue) Options() *Options { return &q.o }

// SetWorkers sets the number of workers, which multiplies the limits.
func (q *Queue) SetWorkers(n int) { q.workers = n }

// Waits reports whether an arriving request has to wait: requests that may go to the same
// workers wait already, or busy reports that all its workers are busy. The caller then calls
// Push. Otherwise it decides at once.
func (q *Queue) Waits(i *Item, busy func(*Item) bool) bool {
	c := q.classes[i.Class]
	if !c.Enabled() || i.Untracked {
		return false
	}
	if c.stats.pending > 0 && q.lanes[i.laneKey()] != nil {
		return true
	}
	return busy(i)
}

// Push makes a request wait in its lane, the requests that may go to the same workers, until
// Take or Remove removes it. The error is a *Rejection when a limit is reached. An item may be
// in one queue at a time.
func (q *Queue) Push(i *Item) error {
	if r := q.rejection(i); r != nil {
		switch r.Kind {
		case LimitRequests:
			q.stats.RejectedRequests++
		case LimitTokens:
			q.stats.RejectedTokens++
		case LimitCachedTokens:
			q.stats.RejectedCachedTokens++
		case LimitAllowed:
			q.stats.RejectedAllowed++
		}
		return r
	}
	c := q.classes[i.Class]
	q.pushes++
	i.pushNumber, i.score, i.Overdue = q.pushes, c.Discipline.score(i, c.Class), false
	i.arrival = q.arrivals.PushBack(i)
	if c.stats.pending == 0 {
		q.ring.Add(&c.share)
	}
	q.count(i, 1)
	q.enter(i)
	q.stats.Queued++
	if i.Favourite != nil {
		q.stats.Held++
	}
	return nil
}

// Hold makes a request that Next has just returned wait on until favourite is released, in its old
// place in the order. The lane of the request sleeps.
func (q *Queue) Hold(i *Item, favourite kv.Worker) {
	i.lane.class.share.Refund(i.Uncached()) // it has not gone
	if k := &i.lane.key; !k.isHeld || k.worker != favourite {
		q.leave(i)
		i.SetFavourite(favourite)
		q.enter(i)
	}
	q.sleep(i.lane)
}

// Take removes a request that Next has just returned: it goes to a worker.
func (q *Queue) Take(i *Item) {
	q.remove(i)
	q.stats.Dispatched++
}

// enter adds an item to its lane.
func (q *Queue) enter(i *Item) {
	l := q.laneFor(i)
	i.lane = l
	l.tokens += i.Uncached()
	heap.Push(&l.waiting, i)
	if len(l.waiting) == 1 && i.Favourite == nil { // Next must try a new lane once
		q.wake(l)
	}
	q.fix(l) // i may be the lane's first request now
}

// leave takes an item out of its lane. It removes a lane that becomes empty.
func (q *Queue) leave(i *Item) {
	l := i.lane
	l.tokens -= i.Uncached()
	heap.Remove(&l.waiting, i.laneIndex)
	i.lane, i.key, i.prepared = nil, laneKey{}, false
	if len(l.waiting) == 0 {
		q.dropLane(l)
		return
	}
	q.fix(l)
}

// Expire makes the requests overdue that have waited as long as they may: they wait no longer for a
// favourite, nor for a worker that is not busy. now is in the seconds of Item.Arrival.
func (q *Queue) Expire(now float64) {
	for front := q.arrivals.Front(); q.o.MaxWait > 0 && front != nil; front = q.arrivals.Front() {
		i := front.Value.(*Item)
		if now-i.Arrival < q.o.MaxWait.Seconds() {
			return
		}
		q.arrivals.Remove(front)
		q.leave(i)
		i.arrival, i.Favourite, i.Overdue = nil, nil, true
		q.enter(i)
		q.stats.Overdue++
	}
}

// Full reports whether Push would refuse an item.
func (q *Queue) Full(i *Item) bool { return q.rejection(i) != nil }

// rejection returns nil if the request may wait, or else the limit that refuses it. Limits per worker
// come first, then the bounds on the memory of the queue. A lane is the requests of one class that may
// go to the same workers.
func (q *Queue) rejection(i *Item) *Rejection {
	c := q.classes[i.Class]
	for _, l := range []struct {
		kind               Limit
		current, perWorker int
	}{
		{LimitRequests, c.stats.pending, c.Limits.Requests},
		{LimitTokens, c.stats.tokens, c.Limits.Tokens},
		{LimitCachedTokens, c.stats.cachedTokens, c.Limits.CachedTokens},
	} {
		if l.perWorker == 0 {
			continue
		}
		if limit := times(l.perWorker, q.workers); l.current >= limit {
			return &Rejection{c.Name, l.kind, l.current, limit}
		}
	}
	switch {
	case q.stats.Pending >= q.o.MaxPending:
		return &Rejection{c.Name, LimitRequests, q.stats.Pending, q.o.MaxPending}
	case q.stats.Tokens >= q.o.MaxTokens:
		return &Rejection{c.Name, LimitTokens, q.stats.Tokens, q.o.MaxTokens}
	// Requests with the same sets share a lane and its memory, so only a new lane counts.
	case i.Pinned == nil && len(i.Allowed) > q.o.MaxAllowed-q.allowedIDs && q.lanes[i.laneKey()] == nil:
		return &Rejection{c.Name, LimitAllowed, q.allowedIDs, q.o.MaxAllowed}
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
	s := &q.classes[i.Class].stats
	s.pending += sign
	s.tokens += sign * i.Tokens
	s.cachedTokens += sign * i.CachedTokens
}

// Next returns the first waiting request with a free worker, or nil. The caller calls Take or Hold
// for it before the next call of the queue. busy reports whether all workers of an item are busy. Requests that may go to the same workers form a
// lane, and Next asks for the first request of each awake lane only. busy must return false
// for an item without eligible workers, so that its caller gets the error.
func (q *Queue) Next(busy func(*Item) bool) *Item {
	for m := range q.ring.Members() {
		m.Value.findFirst(q, busy)
	}
	m := q.ring.Next((*classQueue).cost)
	if m == nil {
		return nil
	}
	return m.Value.first
}

// Remove ends the wait of a request whose caller has left, and reports whether the request
// was waiting.
func (q *Queue) Remove(i *Item) bool {
	if i.lane == nil { // Take has removed it
		return false
	}
	q.remove(i)
	q.stats.Retracted++
	return true
}

// remove takes a waiting item out of the queue.
func (q *Queue) remove(i *Item) {
	c := i.lane.class
	q.leave(i)
	if i.arrival != nil {
		q.arrivals.Remove(i.arrival)
		i.arrival = nil
	}
	q.count(i, -1)
	if c.stats.pending == 0 {
		q.ring.Remove(&c.share)
	}
}

// Len returns the number of requests that wait.
func (q *Queue) Len() int { return q.stats.Pending }

// Tokens returns the sum of the lengths of the prompts that wait.
func (q *Queue) Tokens() int { return q.stats.Tokens }

// Stats returns the gauges and counters.
func (q *Queue) Stats() Stats {
	s := q.stats
	s.Lanes = len(q.lanes)
	return s
}
