package replica

import (
	"maps"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
)

// Scheduler has the account into which the bookings of other routers go, and from which they read this
// router's own. schedule.Scheduler implements it.
type Scheduler interface {
	// WithAccount calls f with the account under a lock. If ok, the load of worker released has dropped.
	WithAccount(f func(a *load.Account) (released kv.Worker, ok bool))
}

const (
	// grace is how long a message that arrived early waits for the one before it.
	grace = 100 * time.Millisecond
	// maxEarly bounds the messages that wait, and maxPending the bookings whose changes are remembered
	// while a router restates.
	maxEarly   = 64
	maxPending = 1 << 16
	// minRetry and maxRetry bound the pause after a restatement that failed or did not help.
	minRetry, maxRetry = 100 * time.Millisecond, 10 * time.Second
)

// stream is what this router has of another router's bookings of one model. A booking is applied when
// its message comes, in the order of the numbers. When messages are lost, the other router restates its
// bookings: pages of them, while messages go on.
type stream struct {
	router uint64
	// opening is that of the model at the router.
	opening    uint64
	to         Scheduler
	stats      *Stats
	earlyBytes *int // of all streams

	heard time.Time
	// next is the number of the next message. early has messages after it, by number. seen is the
	// highest number in a state message. waiting is since when a message is missing, zero when
	// none is.
	next    uint64
	early   map[uint64]*message
	seen    uint64
	waiting time.Time

	// live has the bookings that are in the account.
	live   map[uint64]origin
	digest uint64

	// due is when to ask for a restatement, zero when none is needed. retries counts those that did
	// not help.
	due     time.Time
	retries int
	// asking is true during a restatement.
	asking bool
	// round counts the restatements.
	round uint32
	// from is the first booking of the next page.
	from uint64
	// base is the last message before the first page.
	base uint64
	// pending has, by number, what messages said of bookings that are not in the account.
	pending map[uint64]pendingChange
	// lostAgain is the highest message lost since the restatement began, 0 for none.
	lostAgain uint64
}

// origin is where the last state of a booking came from: a message, or a round of a restatement.
type origin struct {
	message uint64
	round   uint32
}

// pendingChange is what messages said of a booking before a page brought the booking.
type pendingChange struct {
	ended bool
	load.Progress
}

// newStream returns the stream of a router and model that m is the first message of.
func newStream(s *State, o *modelState, m *message, now time.Time) *stream {
	st := &stream{router: m.router, opening: m.opening, to: o.to, stats: &s.stats, earlyBytes: &s.earlyBytes,
		early: make(map[uint64]*message), live: make(map[uint64]origin)}
	st.next = m.number
	if m.state != nil {
		st.next++
	}
	if m.state == nil && m.number > 1 || m.state != nil && m.state.count > 0 {
		st.want(now) // it has bookings from before
	}
	return st
}

// receive applies a message, or keeps an early one.
func (s *stream) receive(m *message, now time.Time) {
	s.heard = now
	if m.state != nil {
		s.compare(m, now)
		return
	}
	switch {
	case m.number < s.next || s.early[m.number] != nil:
		s.stats.Duplicates++
		return
	case m.number == s.next:
		s.apply(m)
		s.next++
	case *s.earlyBytes+m.bytes > maxEarlyBytes:
		s.stats.Early++
		s.seen = max(s.seen, m.number)
		s.giveUp(now)
	default:
		s.early[m.number] = m
		*s.earlyBytes += m.bytes
		if len(s.early) > maxEarly {
			s.giveUp(now)
		}
	}
	s.drain(now)
}

// takeEarly removes an early message, and returns it. nil means that there is none of the number.
func (s *stream) takeEarly(number uint64) *message {
	m := s.early[number]
	if m != nil {
		delete(s.early, number)
		*s.earlyBytes -= m.bytes
	}
	return m
}

// drain applies the early messages whose turn it is, and notes whether a message is missing.
func (s *stream) drain(now time.Time) {
	for m := s.takeEarly(s.next); m != nil; m = s.takeEarly(s.next) {
		s.apply(m)
		s.next++
	}
	switch {
	case len(s.early) == 0 && s.seen < s.next:
		s.waiting = time.Time{}
	case s.waiting.IsZero():
		s.waiting = now
	}
}

// compare handles a state: a missing last message, and bookings that differ although none is missing.
func (s *stream) compare(m *message, now time.Time) {
	s.seen = max(s.seen, m.number)
	s.drain(now)
	if m.number+1 != s.next || s.asking || !s.due.IsZero() {
		return
	}
	if m.state.count == len(s.live) && m.state.digest == s.digest {
		s.retries = 0
		return
	}
	s.stats.Divergences++
	s.want(now.Add(s.pause()))
}

// tick gives up waiting for a missing message after the grace.
func (s *stream) tick(now time.Time) {
	if !s.waiting.IsZero() && now.Sub(s.waiting) > grace {
		s.giveUp(now)
	}
}

// giveUp counts the missing messages as lost, applies the early ones, and wants a restatement.
func (s *stream) giveUp(now time.Time) {
	end := max(s.next, s.seen+1)
	for _, number := range slices.Sorted(maps.Keys(s.early)) {
		s.apply(s.takeEarly(number))
		s.next++ // counts the message as one that is not lost
		end = max(end, number+1)
	}
	s.stats.Lost += end - s.next
	s.next, s.waiting = end, time.Time{}
	if s.asking {
		s.lostAgain = end - 1
		return
	}
	s.want(now)
}

// want asks for a restatement at a time, unless one is due earlier.
func (s *stream) want(at time.Time) {
	if s.due.IsZero() || at.Before(s.due) {
		s.due = at
	}
}

// pause returns how long to wait before a restatement that repeats one that did not help.
func (s *stream) pause() time.Duration {
	s.retries++
	return min(maxRetry, minRetry<<min(s.retries-1, 10))
}

// apply applies the changes of a message.
func (s *stream) apply(m *message) {
	for i := range m.changes {
		c := &m.changes[i]
		switch c.kind {
		case booked:
			s.add(c, origin{message: m.number})
		case progressed:
			s.progress(c)
		case ended:
			s.end(c.Number)
			if s.asking {
				s.remember(c.Number, pendingChange{ended: true})
			}
		}
	}
}

func (s *stream) key(number uint64) load.Foreign {
	return load.Foreign{Router: s.router, Number: number}
}

// progress records the progress of a booking, or remembers it for a page.
func (s *stream) progress(c *change) {
	if _, have := s.live[c.Number]; have {
		s.to.WithAccount(func(a *load.Account) (kv.Worker, bool) { return a.ProgressForeign(s.key(c.Number), &c.Progress) })
	} else if s.asking {
		s.remember(c.Number, pendingChange{Progress: c.Progress})
	}
}

// add puts a booking into the account once. by is what tells of the booking.
func (s *stream) add(c *change, by origin) {
	var err error
	s.to.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
		err = a.AddForeign(s.router, &c.Booking)
		return released, false
	})
	if err != nil {
		s.stats.Refused++
		return
	}
	if _, have := s.live[c.Number]; !have {
		s.digest ^= mixed(c.Number)
		s.stats.Booked++
	}
	s.live[c.Number] = by
}

// end takes a booking out of the account.
func (s *stream) end(number uint64) {
	if _, have := s.live[number]; have {
		delete(s.live, number)
		s.digest ^= mixed(number)
		s.to.WithAccount(func(a *load.Account) (kv.Worker, bool) { return a.EndForeign(s.key(number)) })
	}
}

// remember keeps a change of a booking for the pages of a restatement.
func (s *stream) remember(number uint64, n pendingChange) {
	old, have := s.pending[number]
	if !have && len(s.pending) >= maxPending {
		s.lostAgain = max(s.lostAgain, s.next) // another restatement brings it
		return
	}
	old.ended = old.ended || n.ended
	old.Merge(&n.Progress)
	s.pending[number] = old
}

// begin begins a restatement.
func (s *stream) begin() {
	s.stats.Restatements++
	s.asking, s.due, s.from, s.lostAgain = true, time.Time{}, 0, 0
	s.round++
	s.pending = make(map[uint64]pendingChange)
}

// restate applies a page. done is false when another page follows.
func (s *stream) restate(p *page, now time.Time) (done bool) {
	if s.from == 0 { // the page has every change up to its number
		s.base = p.number
		if p.number >= s.next {
			for number := range s.early {
				if number <= p.number {
					s.takeEarly(number)
				}
			}
			s.next = p.number + 1
			s.drain(now)
		}
		if s.lostAgain <= p.number {
			s.lostAgain = 0
		}
	}
	for i := range p.bookings {
		c := &p.bookings[i]
		n := s.pending[c.Number]
		if n.ended {
			continue
		}
		c.Merge(&n.Progress)
		s.add(c, origin{round: s.round})
	}
	if p.next > s.from {
		s.from = p.next
		return false
	}
	for number, by := range s.live {
		if by.round != s.round && by.message <= s.base { // neither a page nor a later message has the booking
			s.end(number)
		}
	}
	s.finish()
	if s.lostAgain > 0 {
		s.want(now)
	}
	return true
}

// failed ends a restatement without its last page. Another one is due after a pause.
func (s *stream) failed(now time.Time) {
	s.stats.RestatementFailures++
	s.finish()
	s.want(now.Add(s.pause()))
}

func (s *stream) finish() { s.asking, s.pending = false, nil }

// close takes all bookings out of the account.
func (s *stream) close() {
	for number := range s.live {
		s.end(number)
	}
	for number := range s.early {
		s.takeEarly(number)
	}
}
