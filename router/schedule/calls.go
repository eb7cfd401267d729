package schedule

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// Add books a request that the caller has sent to worker w, without a choice by the
// scheduler. cachedTokens of the prompt need no computing. The error is one of package load,
// or names the field that is out of range.
func (s *Scheduler) Add(r *Request, w kv.Worker, cachedTokens int) error {
	if err := r.validate(); err != nil {
		return err
	}
	if cachedTokens < 0 {
		return fmt.Errorf("request %q cached tokens: %d is negative", r.ID, cachedTokens)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	defer s.dispatch() // an expired request may have freed a worker
	return s.book(r, w, cachedTokens, load.Awaited{})
}

// MarkPrefillCompleted records that a request's prompt is computed and no longer load. Call
// it at the first token. Further calls keep a long request from expiring. The error is
// load.ErrUnknownRequest.
func (s *Scheduler) MarkPrefillCompleted(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.account.MarkPrefillCompleted(id); err != nil {
		return err
	}
	if w, ok := s.account.Worker(id); ok {
		s.released(w)
	}
	return nil
}

// AddOutputBlock counts another generated block: see load.Account.
func (s *Scheduler) AddOutputBlock(id string, decay *float64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.AddOutputBlock(id, decay)
}

// Touch records that a request is alive. The error is load.ErrUnknownRequest.
func (s *Scheduler) Touch(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Touch(id)
}

// Free ends a request: its blocks and its prefill no longer count as load. It reports
// whether the request was booked.
func (s *Scheduler) Free(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.account.Free(id)
	if ok {
		s.released(w)
	}
	return ok
}

// FreeBooking ends one booking of request id: number is Result.Booking. Another booking of
// the id, such as that of a retry, stays. It reports whether the booking was there.
func (s *Scheduler) FreeBooking(id string, number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.account.FreeBooking(id, number)
	if ok {
		s.released(w)
	}
	return ok
}

// released decides for the requests that waited for worker w, because the load of w has
// dropped. The caller holds s.mu.
func (s *Scheduler) released(w kv.Worker) {
	if s.queue.Len() == 0 {
		return
	}
	if member, ok := s.members.Find(w); ok {
		s.queue.Released(w, s.workers[member].Taints)
		s.dispatch()
	}
}

// RemoveWorker ends every request that is booked on worker w, and returns their number. Call
// it when the worker has left.
func (s *Scheduler) RemoveWorker(w kv.Worker) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.account.RemoveWorker(w)
	if n > 0 {
		s.released(w)
	}
	return n
}

// WorkersChanged reads the list of workers and their descriptions again, and decides for the
// waiting requests. Call it when a description of a worker has changed.
func (s *Scheduler) WorkersChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setMembers(s.latest(s.members))
	s.dispatch()
}

// WithAccount calls f under the lock. f must not call the scheduler. If ok, the load of a worker has dropped.
func (s *Scheduler) WithAccount(f func(a *load.Account) (released kv.Worker, ok bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, ok := f(s.account); ok {
		s.released(w)
	}
}

// SetBusy replaces the busy thresholds, beyond which a worker gets no requests, and tries the
// waiting requests again. After an error, which names the threshold that is out of range,
// nothing has changed.
func (s *Scheduler) SetBusy(b BusyThresholds) error {
	if err := b.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overloads.thresholds = b
	s.queue.WakeAll()
	s.dispatch()
	return nil
}

// Busy returns the busy thresholds.
func (s *Scheduler) Busy() BusyThresholds {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overloads.thresholds
}

// SetQueue replaces the classes and limits of the queue. Requests that wait keep their arrival, are
// classified anew, and wait on by the new rules. After an error, which names the option that is out of
// range, nothing has changed.
func (s *Scheduler) SetQueue(o queue.Options) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	profile := o.Profile
	fresh, err := s.queue.Replace(o, func(i *queue.Item) {
		class := 0
		if profile != nil && len(profile.Classes) > 1 {
			r := i.Value.(*waiter).request.withMembers(s.members) // the workers may have changed since it came
			class = profile.Classify(r.PolicyClass, max(0, r.Tokens-s.bestCached(r)))
		}
		i.SetClass(class)
	})
	if err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	s.queue = fresh
	s.mayWait.Store(fresh.Options().Enabled())
	s.freeWorkers = make([]freeMembers, len(fresh.Options().Profile.Classes)+1)
	s.queue.WakeAll()
	s.dispatch()
	return nil
}

// ReportUsedBlocks records a worker's report of how many device blocks are in use.
func (s *Scheduler) ReportUsedBlocks(w kv.Worker, used uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.overloads.report(w, used) {
		s.stats.UnknownReports++
	}
}

// ReportRequests records how many requests run and wait in a worker's engine. Requests that
// the engine does not have lose their prefill load: see load.Account.Reconcile.
func (s *Scheduler) ReportRequests(w kv.Worker, running, waiting uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.account.Reconcile(w, running, waiting) > 0 {
		s.released(w)
	}
}

// Tick expires silent requests and decides for the waiting requests that have a free worker.
// Call it about once a second, or ten times a second if PrefillDuration is set and requests
// may wait.
func (s *Scheduler) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.latest(s.members); m != s.members {
		s.setMembers(m)
	}
	s.account.Expire()
	s.queue.WakeAll() // time alone reduces pending prefill with PrefillDuration
	s.dispatch()
}

// expire expires silent requests. Then the next dispatch tries every waiting request.
func (s *Scheduler) expire() {
	if s.account.Expire() > 0 {
		s.queue.WakeAll()
	}
}

// PendingCount returns the number of requests that wait for a worker.
func (s *Scheduler) PendingCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Len()
}

// PendingTokens returns the sum of the lengths of the prompts that wait.
func (s *Scheduler) PendingTokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.Tokens()
}

// Stats returns a snapshot of the counters and gauges of the scheduler, its account of booked
// requests, its queue and its CostSelector, if it has one.
func (s *Scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Load, out.Queue = s.account.Stats(), s.queue.Stats()
	if s.cost != nil {
		out.Cost = s.cost.Stats()
	}
	return out
}

// Loads appends to dst the load of each worker from its booked requests, ordered by worker.
func (s *Scheduler) Loads(dst []PotentialLoad) []PotentialLoad {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.latest(nil); m != s.members {
		s.setMembers(m)
	}
	loads := s.account.Columns()
	for m := range s.members.List {
		dst = append(dst, PotentialLoad{s.members.List[m].Worker, int(loads.PrefillTokens[m]), int(loads.ActiveBlocks[m]), int(loads.Requests[m])})
	}
	return dst
}

// PotentialLoads appends to dst the load that each worker would have with r booked on it,
// ordered by worker. It books nothing. The error names the field of r that is out of range.
func (s *Scheduler) PotentialLoads(dst []PotentialLoad, r *Request) ([]PotentialLoad, error) {
	if err := r.validate(); err != nil {
		return dst, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r = s.withLatestMembers(r)
	first := len(dst)
	loads := s.account.Columns()
	for m := range s.members.List {
		prefill := int(loads.PrefillTokens[m])
		if r.TrackPrefill {
			prefill += max(0, r.Tokens-CachedTokens(s.effective(r, int32(m)), r.BlockSize))
		}
		dst = append(dst, PotentialLoad{s.members.List[m].Worker, prefill, potentialBlocks(r, loads.ActiveBlocks[m], 0), int(loads.Requests[m])})
	}
	// Blocks of r that are active on a worker already are not added there.
	if len(r.Sequence) > 0 {
		s.active = s.account.Shared(s.active[:0], r.Sequence)
		for _, a := range s.active {
			dst[first+int(a.Member)].DecodeBlocks -= int(a.Blocks)
		}
	}
	return dst, nil
}

// withLatestMembers makes the scheduler use the current list of members, and returns r with the
// member numbers of that list. The caller holds s.mu.
func (s *Scheduler) withLatestMembers(r *Request) *Request {
	if m := s.latest(r.Members); m != s.members {
		s.setMembers(m)
	}
	return r.withMembers(s.members)
}

// latest returns the current list of members: the list of Options.Members, else the list m
// of a request, else s.members. The caller makes the scheduler use the result.
func (s *Scheduler) latest(m *index.Members) *index.Members {
	if s.options.Members != nil {
		m = s.options.Members()
	}
	if m == nil {
		return s.members
	}
	return m
}

// withMembers returns r with the member numbers of list m. The result is r itself if r has
// that list or no list.
func (r *Request) withMembers(m *index.Members) *Request {
	if r.Members == m || r.Members == nil {
		return r
	}
	return r.renumbered(m)
}

// setMembers makes m the scheduler's list of members. A member number is a position in that list,
// so every part with per-member state renumbers it here. The next dispatch tries every
// waiting request. The caller holds s.mu.
func (s *Scheduler) setMembers(m *index.Members) {
	s.members = m
	s.memberChanges++
	s.account.Align(m)
	s.describe()
	s.overloads.align(m, s.workers)
	s.queue.SetWorkers(len(m.List))
	s.queue.WakeAll()
}

// describe reads the description of every member into s.workers.
func (s *Scheduler) describe() {
	s.workers = slices.Grow(s.workers[:0], len(s.members.List))
	for _, m := range s.members.List {
		s.workers = append(s.workers, s.options.Worker(m.Worker))
	}
}

// renumbered returns a copy of r for another list of members. A member number is a position
// in the list, so the hits and overlaps of the copy get the numbers of target. Those of
// workers that target does not list are left out.
func (r *Request) renumbered(target *index.Members) *Request {
	moved, from := *r, r.Members
	moved.Members, moved.Hits, moved.Overlaps = target, nil, nil
	renumber := func(member int32) (int32, bool) {
		number, ok := target.Find(from.List[member].Worker)
		return int32(number), ok
	}
	for _, h := range r.Hits {
		if member, ok := renumber(h.Member); ok {
			moved.Hits = append(moved.Hits, index.Hit{Member: member, Hits: h.Hits})
		}
	}
	for _, o := range r.Overlaps {
		if member, ok := renumber(o.Member); ok {
			moved.Overlaps = append(moved.Overlaps, Overlap{member, o.Blocks})
		}
	}
	return &moved
}
