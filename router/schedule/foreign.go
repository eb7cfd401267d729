package schedule

import "github.com/blockyard-ai/blockyard/router/load"

// AddForeign books a request of another router, or records its progress: see load.Account.
func (s *Scheduler) AddForeign(router uint64, b *load.Booking) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.AddForeign(router, b)
}

// ProgressForeign records the progress of a request of another router, and reports whether the request
// is booked.
func (s *Scheduler) ProgressForeign(key load.Foreign, p *load.Progress) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.account.ProgressForeign(key, p)
	if ok {
		s.released(w)
	}
	return ok
}

// EndForeign ends a request of another router, and reports whether the request was booked.
func (s *Scheduler) EndForeign(key load.Foreign) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.account.EndForeign(key)
	if ok {
		s.released(w)
	}
	return ok
}

// Bookings visits the scheduler's own bookings in the order of their numbers, beginning with from,
// until visit returns false. visit must not call the scheduler.
func (s *Scheduler) Bookings(from uint64, visit func(b *load.Booking) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account.Bookings(from, visit)
}

// Owner returns the other router that has booked a request of that id. ok is false without one.
func (s *Scheduler) Owner(id string) (router uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Owner(id)
}

// Active appends every booked request to dst, in no order.
func (s *Scheduler) Active(dst []load.Active) []load.Active {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Active(dst)
}
