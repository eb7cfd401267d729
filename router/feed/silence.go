package feed

import "time"

// Silence ends a publisher only while the router was listening. Pauses of the process and
// of a disconnected source do not count. While the transport drops messages, it may drop
// announcements, so the timeout is longer.
const (
	// stallLimit is the shortest pause of the router that does not count as silence of the
	// publishers. The router ticks ten times a second.
	stallLimit = time.Second
	// lossyFactor multiplies the timeout while messages are dropped.
	lossyFactor = 4
)

// listening records the pauses of the router and the drops of its transport.
type listening struct {
	// lastInput is when the router last handled a message or a tick.
	lastInput time.Time
	// dropped is the transport's count of dropped messages. droppedAt is when the count
	// last grew.
	dropped   uint64
	droppedAt time.Time
}

// recordInputLocked records that the router handles a message or a tick. It extends the
// timeouts of the publishers by a pause of the router.
func (s *Set) recordInputLocked(now time.Time) {
	pause := now.Sub(s.lastInput)
	before := s.lastInput
	if pause > 0 {
		s.lastInput = now
	}
	if before.IsZero() || pause < stallLimit {
		return
	}
	s.counters.Stalls++
	for _, all := range []map[uint64]*feed{s.feeds, s.restored} {
		for _, f := range all {
			f.announcedAt = f.announcedAt.Add(pause)
			f.rivalSeen = f.rivalSeen.Add(pause)
		}
	}
}

// NoteDrops records how many messages the transport has dropped so far.
func (s *Set) NoteDrops(dropped uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dropped > s.dropped {
		s.droppedAt = now
	}
	s.dropped = dropped
}

// silentLocked reports whether a feed's publisher exceeded its timeout. Silence does not count
// while the source is disconnected. After dropped messages the timeout is longer, because they may
// have been announcements.
func (s *Set) silentLocked(f *feed, now time.Time) bool {
	limit := s.silenceTimeout
	if now.Sub(s.droppedAt) < s.silenceTimeout {
		limit *= lossyFactor
	}
	return !s.disconnected[f.source] && now.Sub(f.announcedAt) > limit
}
