package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// waiter is a request that waits. The goroutine that frees a worker decides for it: it sets
// result and err, and closes settled. The scheduler's lock guards all fields but settled.
// result and err do not change once settled is closed.
type waiter struct {
	item    queue.Item
	request *Request
	arrived time.Time
	result  Result
	err     error
	settled chan struct{}
}

// Schedule chooses a worker for r, books the request if r.Book is set, and returns the
// choice. It waits while every eligible worker is busy. The end of ctx ends the wait and is
// the error. Other errors come from this package, package load or the selector, or name the
// field of r that is out of range. When the account has no room, r is routed and not booked.
func (s *Scheduler) Schedule(ctx context.Context, r *Request) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("request %q: %w", r.ID, err)
	}
	if err := r.validate(); err != nil {
		return Result{}, err
	}
	w, result, err := s.decideOrQueue(r)
	if w == nil {
		return result, err
	}
	if r.Waits != nil {
		r.Waits()
	}
	select {
	case <-w.settled:
		return w.result, w.err
	case <-ctx.Done():
	}
	s.retract(w)
	return Result{}, fmt.Errorf("request %q waited %v for a worker: %w", r.ID, s.now().Sub(w.arrived), context.Cause(ctx))
}

// decideOrQueue chooses a worker for r at once and returns the result with a nil waiter. If
// all workers that may serve r are busy, it queues r and returns its waiter. A waiter without
// an error means that the caller must wait for waiter.settled.
func (s *Scheduler) decideOrQueue(r *Request) (*waiter, Result, error) {
	item := queue.Item{
		StrictPriority: r.StrictPriority, PriorityJump: r.PriorityJump, Deadline: r.Deadline,
		Tokens: r.Tokens, Untracked: !r.TrackPrefill,
		Pinned: r.Pinned, Allowed: r.Allowed, RequiredTaints: r.RequiredTaints,
	}
	if s.mayWait.Load() && r.TrackPrefill {
		item.Prepare() // before the lock: a large set of allowed workers takes time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	r = s.withLatestMembers(r)
	defer s.dispatch() // expire may have freed a worker for a request that waits
	// probeItem is a field, because Waits would make a local item escape to the heap.
	s.probeItem = item
	defer func() { s.probeItem = queue.Item{} }()
	t := turn{&s.probeItem, s.classify(&s.probeItem, r), true}
	s.serveHeld(&t, r)
	// An overloaded request does not wait: decide refuses it with an error.
	if !s.queue.Waits(&s.probeItem, s.allBusy) || s.overloaded(&s.probeItem) {
		result, err := s.decide(r, t)
		if err == nil || !s.hold(err) {
			return nil, result, err
		}
		if s.queue.Full(&s.probeItem) { // a request that has a free worker is not refused
			t.mayWait = false
			result, err = s.decide(r, t)
			return nil, result, err
		}
	}
	now := s.now()
	w := &waiter{item: s.probeItem, request: r, arrived: now, settled: make(chan struct{})}
	w.item.Arrival = s.seconds(now)
	w.item.CachedTokens = s.bestCached(r)
	w.item.Value = w
	if err := s.queue.Push(&w.item); err != nil {
		return nil, Result{}, fmt.Errorf("request %q: %w", r.ID, err)
	}
	return w, Result{}, nil
}

// classify sets the class of a request's item, and returns the class.
func (s *Scheduler) classify(i *queue.Item, r *Request) *queue.Class {
	p := s.queue.Options().Profile
	if len(p.Classes) > 1 {
		i.SetClass(p.Classify(r.PolicyClass, max(0, r.Tokens-s.bestCached(r))))
	}
	return &p.Classes[i.Class]
}

// seconds returns a time in the seconds of queue.Item.Arrival.
func (s *Scheduler) seconds(t time.Time) float64 { return t.Sub(s.started).Seconds() }

// overloaded reports whether all workers that may serve an item are beyond a busy threshold.
// Such a request is refused and does not wait.
func (s *Scheduler) overloaded(i *queue.Item) bool {
	_, err := s.eligible(s.probedMembers[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
	return errors.Is(err, ErrAllOverloaded) || errors.Is(err, ErrPinnedOverloaded)
}

// itemBusy reports whether an item has eligible workers and all of them have too much pending
// prefill, so that the item waits. The queue calls it for arriving and for waiting items. The
// caller holds s.mu.
func (s *Scheduler) itemBusy(i *queue.Item) bool {
	if i.Waiting() { // the item waits already
		return s.laneBusy(i)
	}
	found, err := s.eligible(s.probedMembers[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
	if err != nil {
		return false // the request must not wait, but get the error
	}
	class, prefill := &s.queue.Options().Profile.Classes[i.Class], s.account.Columns().PrefillTokens
	if found == nil { // all members are eligible
		for m, n := range prefill {
			if !class.Busy(n, s.workers[m].MaxBatchedTokens) {
				return false
			}
		}
		return true
	}
	s.probedMembers = found
	for _, m := range found {
		if !class.Busy(prefill[m], s.workers[m].MaxBatchedTokens) {
			return false
		}
	}
	return true
}

// bestCached returns how many tokens of r's prompt are cached on the worker that has most of
// them, among the workers that may serve r. The queue limits the sum over waiting requests.
func (s *Scheduler) bestCached(r *Request) int {
	f, best := r.filter(), 0.0
	consider := func(m int32, effective float64) {
		w := s.members.List[m].Worker
		if effective > best && f.allows(w.ID) && (f.pinned == nil || *f.pinned == w) && hasTaints(&s.workers[m], f.taints) {
			best = effective
		}
	}
	for _, h := range r.Hits {
		consider(h.Member, s.config.Effective(h.Hits))
	}
	if len(r.Hits) == 0 {
		for _, o := range r.Overlaps {
			consider(o.Member, o.Blocks)
		}
	}
	return min(CachedTokens(best, r.BlockSize), r.Tokens)
}

// dispatch chooses workers for the waiting requests that have a free worker, in order, and wakes
// their callers. A request that waited long first gets new hits by Refresh. Every call that may
// free a worker calls it last. The caller holds s.mu.
func (s *Scheduler) dispatch() {
	if s.queue.Len() == 0 {
		return
	}
	now := s.now()
	s.loadsChanged()
	s.decidesWaiter, s.repriced, s.moved = true, 0, 0
	defer func() { s.decidesWaiter = false }()
	s.queue.Expire(s.seconds(now))
	for s.moved < maxRepriced { // the lanes of the others stay awake for the next dispatch
		i := s.queue.Next(s.allBusy)
		if i == nil {
			return
		}
		s.settle(i.Value.(*waiter), now)
	}
}

// settle chooses a worker for a request that is next in the queue and wakes its caller, or lets the
// request wait on for a better worker.
func (s *Scheduler) settle(w *waiter, now time.Time) {
	waited := now.Sub(w.arrived)
	if s.options.Refresh != nil && waited >= s.options.RefreshAfter {
		fresh := *w.request
		s.options.Refresh(&fresh)
		w.request = &fresh
		s.stats.Refreshed++
	}
	class := &s.queue.Options().Profile.Classes[w.item.Class]
	result, err := s.decide(w.request.withMembers(s.members), turn{&w.item, class, !w.item.Overdue})
	if held := (*heldError)(nil); errors.As(err, &held) {
		if w.item.Favourite == nil || *w.item.Favourite != held.worker {
			s.moved++
		}
		s.queue.Hold(&w.item, held.worker)
		return
	}
	s.queue.Take(&w.item)
	s.loadsChanged() // the booking changed a load
	result.Waited = waited
	w.result, w.err = result, err
	close(w.settled)
}

// retract ends the wait of a request whose caller has left. Another goroutine may have chosen
// a worker meanwhile: then retract frees the booking.
func (s *Scheduler) retract(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue.Remove(&w.item) || w.err != nil { // the request got no worker
		return
	}
	s.stats.RolledBack++
	if !w.result.Booked {
		return
	}
	if worker, ok := s.account.FreeBooking(w.request.ID, w.result.Booking); ok {
		s.released(worker)
	}
}

// bits is a set of members.
type bits []uint64

// cleared returns an empty set for n members, in the memory of b if it is large enough.
func (b bits) cleared(n int) bits {
	words := (n + 63) / 64
	b = slices.Grow(b[:0], words)[:words]
	clear(b)
	return b
}

func (b bits) add(m int)      { b[m/64] |= 1 << (m % 64) }
func (b bits) has(m int) bool { return b[m/64]&(1<<(m%64)) != 0 }

// freeMembers caches which members are neither overloaded nor busy, and so can take a waiting
// request of one class, or which are not overloaded, and so can take an overdue one. The cache is
// valid until a load changes.
type freeMembers struct {
	valid   bool
	members bits
}

// loadsChanged ends the validity of s.freeWorkers.
func (s *Scheduler) loadsChanged() {
	for k := range s.freeWorkers {
		s.freeWorkers[k].valid = false
	}
}

// free returns the members that can take a waiting item now.
func (s *Scheduler) free(i *queue.Item) bits {
	at := i.Class
	if i.Overdue {
		at = len(s.freeWorkers) - 1
	}
	free := &s.freeWorkers[at]
	if free.valid {
		return free.members
	}
	loads, c, n := s.account.Columns(), &s.queue.Options().Profile.Classes[i.Class], len(s.members.List)
	overload := s.overloads.current(loads)
	free.valid, free.members = true, free.members.cleared(n)
	for m, prefill := range loads.PrefillTokens {
		if (overload == nil || !overload[m]) && (i.Overdue || !c.Busy(prefill, s.workers[m].MaxBatchedTokens)) {
			free.members.add(m)
		}
	}
	return free.members
}

// maxRepriced bounds the held requests that one dispatch prices again although their favourite is
// still busy, and the requests that it prices and holds for another favourite. A price takes time linear
// in the number of workers.
const maxRepriced = 64

// laneBusy reports whether a waiting item has workers that may serve it and all of them are
// busy. An overloaded worker counts as busy: a waiting request is not refused, and the
// overload may end with the next report. Sets of members are bit sets, compared word by word.
func (s *Scheduler) laneBusy(i *queue.Item) bool {
	free := s.free(i)
	if i.Favourite != nil {
		m, ok := s.members.Find(*i.Favourite)
		if s.repriced++; s.repriced > maxRepriced && ok && !free.has(m) {
			return true
		}
	}
	if i.Pinned != nil { // a lane of one worker needs no set
		c := cluster{s.members, s.workers, nil}
		found, err := c.eligiblePin(s.probedMembers[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
		return err == nil && !free.has(int(found[0]))
	}
	anyServing := uint64(0)
	for k, serving := range s.mayServe(i) {
		if serving&free[k] != 0 {
			return false
		}
		anyServing |= serving
	}
	return anyServing != 0 // an item without workers is not busy: it gets the error
}

// mayServe returns the members that may serve a waiting item, overloaded or not. The item's
// lane, the requests that may go to the same workers, caches the set until the members or
// their descriptions change.
func (s *Scheduler) mayServe(i *queue.Item) bits {
	l := i.Note()
	if l.ServingAsOf == s.memberChanges { // computed since the last change
		return l.Serving
	}
	serving := bits(l.Serving).cleared(len(s.members.List))
	l.Serving, l.ServingAsOf = serving, s.memberChanges
	f, c := filter{nil, i.Allowed, i.RequiredTaints}, cluster{s.members, s.workers, nil}
	if f.allowed == nil {
		for m := range s.members.List {
			if hasTaints(&s.workers[m], f.taints) {
				serving.add(m)
			}
		}
		return serving
	}
	s.probedMembers = c.allowed(s.probedMembers[:0], f)
	for _, m := range s.probedMembers {
		if hasTaints(&s.workers[m], f.taints) {
			serving.add(int(m))
		}
	}
	return serving
}

// allowed appends to dst the numbers of the members whose workers the filter allows,
// ascending. A nil set allows all. A small set is looked up in the list of members, which
// takes less time than a pass over all members.
func (c *cluster) allowed(dst []int32, f filter) []int32 {
	list := c.members.List
	if f.allowed == nil || len(f.allowed) >= len(list)/16 {
		for m := range list {
			if f.allows(list[m].Worker.ID) {
				dst = append(dst, int32(m))
			}
		}
		return dst
	}
	first := len(dst)
	for id := range f.allowed {
		m, _ := slices.BinarySearchFunc(list, id, compareID)
		for ; m < len(list) && list[m].Worker.ID == id; m++ {
			dst = append(dst, int32(m))
		}
	}
	slices.Sort(dst[first:])
	return dst
}

// compareID compares the worker id of a member with id.
func compareID(m index.Member, id kv.WorkerID) int { return cmp.Compare(m.Worker.ID, id) }
