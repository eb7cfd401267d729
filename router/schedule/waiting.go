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

// waiter is a request that waits. The scheduler's lock guards all but settled.
// result and err do not change once settled is closed.
type waiter struct {
	item    Item
	request *Request
	arrived time.Time
	result  Result
	err     error
	settled chan struct{}
}

// Schedule chooses a worker for r, books the request if r.Book is set, and returns
// the choice. Schedule waits while every worker that r may go to is busy. The end
// of ctx ends the wait and is the error. Other errors come from this package,
// package load or the selector, or name the field of r that is out of range. A
// request for which the account has no room is routed and not booked.
func (s *Scheduler) Schedule(ctx context.Context, r *Request) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("request %q: %w", r.ID, err)
	}
	if err := s.validate(r); err != nil {
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

// decideOrQueue decides at once, or returns a waiter.
func (s *Scheduler) decideOrQueue(r *Request) (*waiter, Result, error) {
	item := Item{
		StrictPriority: r.StrictPriority, PriorityJump: r.PriorityJump,
		Tokens: r.Tokens, Untracked: !r.TrackPrefill,
		Pinned: r.Pinned, Allowed: r.Allowed, RequiredTaints: r.RequiredTaints,
	}
	if s.options.Queue.Enabled() && r.TrackPrefill {
		item.prepare()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	r = s.follow(r)
	defer s.drain()
	s.probe = item
	defer func() { s.probe = Item{} }()
	if !s.queue.Waits(&s.probe, s.allBusy) || s.overloaded(&s.probe) {
		result, err := s.decide(r)
		return nil, result, err
	}
	now := s.now()
	w := &waiter{item: s.probe, request: r, arrived: now, settled: make(chan struct{})}
	w.item.Arrival = now.Sub(s.started).Seconds()
	w.item.CachedTokens = s.bestCached(r)
	w.item.Value = w
	if err := s.queue.Push(&w.item); err != nil {
		return nil, Result{}, fmt.Errorf("request %q: %w", r.ID, err)
	}
	return w, Result{}, nil
}

// overloaded reports whether all workers that an item may go to are overloaded.
// Such a request is refused and does not wait.
func (s *Scheduler) overloaded(i *Item) bool {
	_, err := s.eligible(s.probed[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
	return errors.Is(err, ErrAllOverloaded) || errors.Is(err, ErrPinnedOverloaded)
}

// itemBusy reports whether an item has workers to go to, and all of them are busy.
func (s *Scheduler) itemBusy(i *Item) bool {
	if i.lane != nil {
		return s.laneBusy(i)
	}
	found, err := s.eligible(s.probed[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
	if err != nil {
		return false
	}
	options, prefill := s.queue.Options(), s.account.Columns().PrefillTokens
	if found == nil {
		for m, n := range prefill {
			if !options.Busy(n, s.workers[m].MaxBatchedTokens) {
				return false
			}
		}
		return true
	}
	s.probed = found
	for _, m := range found {
		if !options.Busy(prefill[m], s.workers[m].MaxBatchedTokens) {
			return false
		}
	}
	return true
}

// bestCached returns the most tokens of r's prompt that any worker has cached that
// may serve r.
func (s *Scheduler) bestCached(r *Request) int {
	f, best := r.filter(), 0.0
	look := func(m int32, effective float64) {
		w := s.members.List[m].Worker
		if effective > best && f.allows(w.ID) && (f.pinned == nil || *f.pinned == w) && hasTaints(&s.workers[m], f.taints) {
			best = effective
		}
	}
	for _, h := range r.Hits {
		look(h.Member, s.config.Effective(h.Hits))
	}
	if len(r.Hits) == 0 {
		for _, o := range r.Overlaps {
			look(o.Member, o.Blocks)
		}
	}
	return min(CachedTokens(best, r.BlockSize), r.Tokens)
}

// drain gives workers to waiting requests as far as there are any.
func (s *Scheduler) drain() {
	if s.queue.Len() == 0 {
		return
	}
	now := s.now()
	s.room.known, s.waited = false, true
	defer func() { s.waited = false }()
	for i := s.queue.Next(s.allBusy); i != nil; i = s.queue.Next(s.allBusy) {
		w := i.Value.(*waiter)
		waited := now.Sub(w.arrived)
		if s.options.Refresh != nil && waited >= s.options.RefreshAfter {
			fresh := *w.request
			s.options.Refresh(&fresh)
			w.request = &fresh
			s.stats.Refreshed++
		}
		w.result, w.err = s.decide(w.request.in(s.members))
		s.room.known = false
		w.result.Waited = waited
		close(w.settled)
	}
}

// retract ends the wait of a request whose caller has left. A worker that the
// request got meanwhile is given back.
func (s *Scheduler) retract(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue.Remove(&w.item) || w.err != nil {
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

// room caches which members can take a waiting request: those that are neither
// overloaded nor busy. The cache is valid until a load changes.
type room struct {
	known bool
	free  bits
}

// refreshRoom computes s.room if it is not known.
func (s *Scheduler) refreshRoom() {
	if s.room.known {
		return
	}
	loads, options, n := s.account.Columns(), s.queue.Options(), len(s.members.List)
	r := &s.room
	overload := s.busy.current(loads)
	r.known, r.free = true, r.free.cleared(n)
	for m, prefill := range loads.PrefillTokens {
		if (overload == nil || !overload[m]) && !options.Busy(prefill, s.workers[m].MaxBatchedTokens) {
			r.free.add(m)
		}
	}
}

// laneBusy is itemBusy for an item that waits. Its lane knows which members may
// serve it. An overloaded worker counts as busy here: overload refuses new
// requests, and may end with the next report.
func (s *Scheduler) laneBusy(i *Item) bool {
	s.refreshRoom()
	if i.Pinned != nil {
		c := cluster{s.members, s.workers, nil}
		found, err := c.eligiblePin(s.probed[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
		return err == nil && !s.room.free.has(int(found[0]))
	}
	some := uint64(0)
	for k, may := range s.mayServe(i) {
		if may&s.room.free[k] != 0 {
			return false
		}
		some |= may
	}
	return some != 0
}

// mayServe returns the members that may serve an item that waits, overloaded ones included.
func (s *Scheduler) mayServe(i *Item) bits {
	l := i.lane
	if l.aligned == s.alignments {
		return l.may
	}
	l.may, l.aligned = l.may.cleared(len(s.members.List)), s.alignments
	f, c := filter{nil, i.Allowed, i.RequiredTaints}, cluster{s.members, s.workers, nil}
	if f.allowed == nil {
		for m := range s.members.List {
			if hasTaints(&s.workers[m], f.taints) {
				l.may.add(m)
			}
		}
		return l.may
	}
	s.probed = c.allowed(s.probed[:0], f)
	for _, m := range s.probed {
		if hasTaints(&s.workers[m], f.taints) {
			l.may.add(int(m))
		}
	}
	return l.may
}

// allowed appends to dst the members whose workers are allowed, ascending. It
// iterates over the smaller of the two sets.
func (c *cluster) allowed(dst []int32, f filter) []int32 {
	list := c.members.List
	if len(f.allowed) >= len(list)/16 {
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

// compareID orders a member before an id when all ranks of the id come behind the member.
func compareID(m index.Member, id kv.WorkerID) int { return cmp.Compare(m.Worker.ID, id) }
