package schedule

import (
	"slices"

	"github.com/blockyard-ai/blockyard/router/index"
)

// follow aligns everything with the list of members that counts, and returns r
// in terms of it. It is r itself unless that came with another list.
func (s *Scheduler) follow(r *Request) *Request {
	if m := s.latest(r.Members); m != s.members {
		s.align(m)
	}
	return r.in(s.members)
}

// latest is the list that counts when somebody comes with m.
func (s *Scheduler) latest(m *index.Members) *index.Members {
	if s.options.Members != nil {
		m = s.options.Members()
	}
	if m == nil {
		return s.members
	}
	return m
}

// in is r in terms of m: r itself unless that came with another list.
func (r *Request) in(m *index.Members) *Request {
	if r.Members == m || r.Members == nil {
		return r
	}
	return r.onto(m)
}

func (s *Scheduler) align(m *index.Members) {
	s.members = m
	s.alignments++
	s.account.Align(m)
	s.describe()
	s.busy.align(m, s.workers)
	s.queue.SetWorkers(len(m.List))
	s.queue.WakeAll()
}

// describe asks for what the workers are like.
func (s *Scheduler) describe() {
	s.workers = slices.Grow(s.workers[:0], len(s.members.List))
	for _, m := range s.members.List {
		s.workers = append(s.workers, s.options.Worker(m.Worker))
	}
}

// onto is a copy of r that refers to another list of members. What it has of
// workers that are not in it is left out.
func (r *Request) onto(to *index.Members) *Request {
	moved, from := *r, r.Members
	moved.Members, moved.Hits, moved.Overlaps = to, nil, nil
	place := func(member int32) (int32, bool) {
		at, ok := to.Find(from.List[member].Worker)
		return int32(at), ok
	}
	for _, h := range r.Hits {
		if at, ok := place(h.Member); ok {
			moved.Hits = append(moved.Hits, index.Hit{Member: at, Hits: h.Hits})
		}
	}
	for _, o := range r.Overlaps {
		if at, ok := place(o.Member); ok {
			moved.Overlaps = append(moved.Overlaps, Overlap{at, o.Blocks})
		}
	}
	return &moved
}
