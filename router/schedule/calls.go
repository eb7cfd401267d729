package schedule

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Add books a request that the caller sent to worker w itself. cachedTokens of the
// prompt need no computing. The error is one of package load, or names the field
// that is out of range.
func (s *Scheduler) Add(r *Request, w kv.Worker, cachedTokens int) error {
	if err := s.validate(r); err != nil {
		return err
	}
	if cachedTokens < 0 {
		return fmt.Errorf("request %q cached tokens: %d is negative", r.ID, cachedTokens)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	defer s.drain()
	return s.book(r, w, cachedTokens)
}

// MarkPrefillCompleted says that a request's prompt is computed. Further calls keep
// a long request from expiring. The error is load.ErrUnknownRequest.
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

// Touch says that a request is alive. The error is load.ErrUnknownRequest.
func (s *Scheduler) Touch(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Touch(id)
}

// Free ends a request with its prefill, and reports whether the request was active.
// An unknown id is no error.
func (s *Scheduler) Free(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.account.Free(id)
	if ok {
		s.released(w)
	}
	return ok
}

// FreeBooking is Free for one booking. Another booking of the id, such as that of a
// retry, stays.
func (s *Scheduler) FreeBooking(id string, number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.account.FreeBooking(id, number)
	if ok {
		s.released(w)
	}
	return ok
}

// released lets waiting requests try again after the load of worker w has dropped. The
// caller holds s.mu.
func (s *Scheduler) released(w kv.Worker) {
	if s.queue.Len() == 0 {
		return
	}
	if member, ok := s.members.Find(w); ok {
		s.queue.Released(w, s.workers[member].Taints)
		s.drain()
	}
}

// RemoveWorker ends every request of a worker that has gone, and returns their number.
func (s *Scheduler) RemoveWorker(w kv.Worker) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.account.RemoveWorker(w)
	if n > 0 {
		s.released(w)
	}
	return n
}

// WorkersChanged reads the members and their descriptions again, and lets waiting
// requests try.
func (s *Scheduler) WorkersChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.align(s.latest(s.members))
	s.drain()
}

// SetBusy replaces the busy thresholds. The error names the threshold that is out
// of range, and then nothing has changed.
func (s *Scheduler) SetBusy(b BusyThresholds) error {
	if err := b.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy.thresholds = b
	s.queue.WakeAll()
	s.drain()
	return nil
}

// Busy returns the busy thresholds.
func (s *Scheduler) Busy() BusyThresholds {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy.thresholds
}

// ReportUsedBlocks notes how many blocks of its device a worker reports to be in use.
func (s *Scheduler) ReportUsedBlocks(w kv.Worker, used uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.busy.report(w, used) {
		s.stats.UnknownReports++
	}
}

// ReportRequests notes how many requests a worker's engine has, running and waiting. Requests
// that the engine does not have lose their prefill load: see load.Account.Reconcile.
func (s *Scheduler) ReportRequests(w kv.Worker, running, waiting uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.account.Reconcile(w, running, waiting) > 0 {
		s.released(w)
	}
}

// Tick ends requests that have been silent for too long and lets waiting requests
// try. Call it about once a second, and ten times as often if PrefillDuration is
// set and requests may wait.
func (s *Scheduler) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.latest(s.members); m != s.members {
		s.align(m)
	}
	s.account.Expire()
	s.queue.WakeAll()
	s.drain()
}

// expire ends requests that have been silent for too long, and lets waiting requests try
// at the next drain.
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

// Stats returns a snapshot.
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

// Loads appends to dst the booked load of each member.
func (s *Scheduler) Loads(dst []PotentialLoad) []PotentialLoad {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.latest(nil); m != s.members {
		s.align(m)
	}
	loads := s.account.Columns()
	for m := range s.members.List {
		dst = append(dst, PotentialLoad{s.members.List[m].Worker, int(loads.PrefillTokens[m]), int(loads.ActiveBlocks[m])})
	}
	return dst
}

// PotentialLoads appends to dst the load of each member with r added.
func (s *Scheduler) PotentialLoads(dst []PotentialLoad, r *Request) ([]PotentialLoad, error) {
	if err := s.validate(r); err != nil {
		return dst, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r = s.follow(r)
	first := len(dst)
	loads := s.account.Columns()
	for m := range s.members.List {
		prefill := int(loads.PrefillTokens[m])
		if r.TrackPrefill {
			prefill += max(0, r.Tokens-CachedTokens(s.effective(r, int32(m)), r.BlockSize))
		}
		dst = append(dst, PotentialLoad{s.members.List[m].Worker, prefill, potentialBlocks(r, loads.ActiveBlocks[m], 0)})
	}
	if len(r.Sequence) > 0 {
		s.active = s.account.Shared(s.active[:0], r.Sequence)
		for _, a := range s.active {
			dst[first+int(a.Member)].DecodeBlocks -= int(a.Blocks)
		}
	}
	return dst, nil
}

// follow aligns the scheduler with the current list of members, and returns r with member
// numbers of that list. The caller holds s.mu.
func (s *Scheduler) follow(r *Request) *Request {
	if m := s.latest(r.Members); m != s.members {
		s.align(m)
	}
	return r.in(s.members)
}

// latest returns the list of members to use for a request that came with list m:
// Options.Members decides, then m. Without both latest returns s.members.
func (s *Scheduler) latest(m *index.Members) *index.Members {
	if s.options.Members != nil {
		m = s.options.Members()
	}
	if m == nil {
		return s.members
	}
	return m
}

// in returns r with member numbers of list m. The result is r itself if r has that list or
// names no members.
func (r *Request) in(m *index.Members) *Request {
	if r.Members == m || r.Members == nil {
		return r
	}
	return r.onto(m)
}

// align makes m the list of members. Every waiting request tries again at the next drain.
// The caller holds s.mu.
func (s *Scheduler) align(m *index.Members) {
	s.members = m
	s.alignments++
	s.account.Align(m)
	s.describe()
	s.busy.align(m, s.workers)
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

// onto returns a copy of r with member numbers of list to. Hits and overlaps of workers
// that to does not list are left out.
func (r *Request) onto(to *index.Members) *Request {
	moved, from := *r, r.Members
	moved.Members, moved.Hits, moved.Overlaps = to, nil, nil
	renumber := func(member int32) (int32, bool) {
		number, ok := to.Find(from.List[member].Worker)
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
