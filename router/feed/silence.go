package feed

import "time"

// Silence of a publisher says that it has ended only while the router listens. Its own
// pauses are not counted: a process that stood still, a disconnected source. While
// messages are dropped for lack of room in the transport's queue, announcements may be
// among them, and a publisher has more time.
const (
	// stallLimit is how long the router may take in nothing before that is a pause. It
	// looks around ten times a second.
	stallLimit = time.Second
	// lossyFactor multiplies the feed timeout while messages are dropped.
	lossyFactor = 4
)

// attention is what a feedSet knows of its own attention.
type attention struct {
	// listened is when something was taken in last.
	listened time.Time
	// dropped is how many messages were dropped, and droppedAt when that was noticed
	// last.
	dropped   uint64
	droppedAt time.Time
}

// listenLocked notes that the router takes something in, and forgives the publishers
// the time in which it did not.
func (s *Set) listenLocked(now time.Time) {
	pause := now.Sub(s.listened)
	before := s.listened
	if pause > 0 {
		s.listened = now
	}
	if before.IsZero() || pause < stallLimit {
		return
	}
	s.counters.Stalls++
	for _, all := range []map[uint64]*feed{s.feeds, s.restored} {
		for _, f := range all {
			f.seen = f.seen.Add(pause)
			f.rivalSeen = f.rivalSeen.Add(pause)
		}
	}
}

// HeardOfDrops takes in how many messages the transport has dropped so far.
func (s *Set) HeardOfDrops(dropped uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dropped > s.dropped {
		s.droppedAt = now
	}
	s.dropped = dropped
}

// silentLocked reports whether a feed is silent for so long that it is over. Where
// its source is away, silence says nothing.
func (s *Set) silentLocked(f *feed, now time.Time) bool {
	limit := s.timeout
	if now.Sub(s.droppedAt) < s.timeout {
		limit *= lossyFactor
	}
	return !s.offline[f.source] && now.Sub(f.seen) > limit
}
