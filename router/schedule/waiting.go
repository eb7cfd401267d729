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
)

// waiter is a request that waits. The goroutine that frees a worker decides for it: it sets
// result and err, and closes settled. The scheduler's lock guards all fields but settled.
// result and err do not change once settled is closed.
type waiter struct {
	item    Item
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
	item := Item{
		StrictPriority: r.StrictPriority, PriorityJump: r.PriorityJump,
		Tokens: r.Tokens, Untracked: !r.TrackPrefill,
		Pinned: r.Pinned, Allowed: r.Allowed, RequiredTaints: r.RequiredTaints,
	}
	if s.options.Queue.Enabled() && r.TrackPrefill {
		item.prepare() // before the lock: a large set of allowed workers takes time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	r = s.withLatestMembers(r)
	defer s.dispatch() // expire may have freed a worker for a request that waits
	// probeItem is a field, because Waits would make a local item escape to the heap.
	s.probeItem = item
	defer func() { s.probeItem = Item{} }()
	// An overloaded request does not wait: decide refuses it with an error.
	if !s.queue.Waits(&s.probeItem, s.allBusy) || s.overloaded(&s.probeItem) {
		result, err := s.decide(r)
		return nil, result, err
	}
	now := s.now()
	w := &waiter{item: s.probeItem, request: r, arrived: now, settled: make(chan struct{})}
	w.item.Arrival = now.Sub(s.started).Seconds()
	w.item.CachedTokens = s.bestCached(r)
	w.item.Value = w
	if err := s.queue.Push(&w.item); err != nil {
		return nil, Result{}, fmt.Errorf("request %q: %w", r.ID, err)
	}
	return w, Result{}, nil
}

// overloaded reports whether all workers that may serve an item are beyond a busy threshold.
// Such a request is refused and does not wait.
func (s *Scheduler) overloaded(i *Item) bool {
	_, err := s.eligible(s.probedMembers[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
	return errors.Is(err, ErrAllOverloaded) || errors.Is(err, ErrPinnedOverloaded)
}

// itemBusy reports whether an item has eligible workers and all of them have too much pending
// prefill, so that the item waits. The queue calls it for arriving and for waiting items. The
// caller holds s.mu.
func (s *Scheduler) itemBusy(i *Item) bool {
	if i.lane != nil { // the item waits already
		return s.laneBusy(i)
	}
	found, err := s.eligible(s.probedMembers[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
	if err != nil {
		return false // the request must not wait, but get the error
	}
	options, prefill := s.queue.Options(), s.account.Columns().PrefillTokens
	if found == nil { // all members are eligible
		for m, n := range prefill {
			if !options.Busy(n, s.workers[m].MaxBatchedTokens) {
				return false
			}
		}
		return true
	}
	s.probedMembers = found
	for _, m := range found {
		if !options.Busy(prefill[m], s.workers[m].MaxBatchedTokens) {
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
	s.freeWorkers.valid, s.decidesWaiter = false, true // loads may have changed
	defer func() { s.decidesWaiter = false }()
	for i := s.queue.Next(s.allBusy); i != nil; i = s.queue.Next(s.allBusy) {
		w := i.Value.(*waiter)
		waited := now.Sub(w.arrived)
		if s.options.Refresh != nil && waited >= s.options.RefreshAfter {
			fresh := *w.request
			s.options.Refresh(&fresh)
			w.request = &fresh
			s.stats.Refreshed++
		}
		w.result, w.err = s.decide(w.request.withMembers(s.members))
		s.freeWorkers.valid = false // the booking changed a load
		w.result.Waited = waited
		close(w.settled)
	}
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
// request. The cache is valid until a load changes.
type freeMembers struct {
	valid   bool
	members bits
}

// refreshFree computes s.freeWorkers, the members that can take a waiting request now, unless it is
// valid. dispatch invalidates it when a load has changed.
func (s *Scheduler) refreshFree() {
	if s.freeWorkers.valid {
		return
	}
	loads, options, n := s.account.Columns(), s.queue.Options(), len(s.members.List)
	free := &s.freeWorkers
	overload := s.overloads.current(loads)
	free.valid, free.members = true, free.members.cleared(n)
	for m, prefill := range loads.PrefillTokens {
		if (overload == nil || !overload[m]) && !options.Busy(prefill, s.workers[m].MaxBatchedTokens) {
			free.members.add(m)
		}
	}
}

// laneBusy reports whether a waiting item has workers that may serve it and all of them are
// busy. An overloaded worker counts as busy: a waiting request is not refused, and the
// overload may end with the next report. Sets of members are bit sets, compared word by word.
func (s *Scheduler) laneBusy(i *Item) bool {
	s.refreshFree()
	if i.Pinned != nil { // a lane of one worker needs no set
		c := cluster{s.members, s.workers, nil}
		found, err := c.eligiblePin(s.probedMembers[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
		return err == nil && !s.freeWorkers.members.has(int(found[0]))
	}
	anyServing := uint64(0)
	for k, serving := range s.mayServe(i) {
		if serving&s.freeWorkers.members[k] != 0 {
			return false
		}
		anyServing |= serving
	}
	return anyServing != 0 // an item without workers is not busy: it gets the error
}

// mayServe returns the members that may serve a waiting item, overloaded or not. The item's
// lane, the requests that may go to the same workers, caches the set until the members or
// their descriptions change.
func (s *Scheduler) mayServe(i *Item) bits {
	l := i.lane
	if l.servingAsOf == s.memberChanges { // computed since the last change
		return l.serving
	}
	l.serving, l.servingAsOf = l.serving.cleared(len(s.members.List)), s.memberChanges
	f, c := filter{nil, i.Allowed, i.RequiredTaints}, cluster{s.members, s.workers, nil}
	if f.allowed == nil {
		for m := range s.members.List {
			if hasTaints(&s.workers[m], f.taints) {
				l.serving.add(m)
			}
		}
		return l.serving
	}
	s.probedMembers = c.allowed(s.probedMembers[:0], f)
	for _, m := range s.probedMembers {
		if hasTaints(&s.workers[m], f.taints) {
			l.serving.add(int(m))
		}
	}
	return l.serving
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
