package sequence

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

// ask makes a replay due, not sooner than the cooldown after the last one.
func (s *Sequencer) ask(now time.Time) {
	s.phase = waiting
	s.retryAt = now
	if earliest := s.lastRequest.Add(replayCooldown); s.gap && earliest.After(now) {
		s.retryAt = earliest
	}
}

// request returns the first batch of the replay to start now, if one is due. The
// owner then sends it, and reports what comes with replayed, replayEnd or
// replayFailed.
func (s *Sequencer) Request(now time.Time) (start uint64, ok bool) {
	if s.phase != waiting || now.Before(s.retryAt) {
		return 0, false
	}
	s.count.Replays.Add(1)
	s.requests++
	s.phase = asking
	s.lastRequest, s.deadline = now, now.Add(s.cfg.Timeout)
	s.answered, s.counted, s.progress = false, s.gap, false
	// Nothing is there to compare before the first batch and after a loss.
	s.verified = true
	if s.next > 0 {
		if _, remembered := s.recent.find(s.next - 1); remembered {
			s.verified = false
			return s.next - 1, true
		}
	}
	return s.next, true
}

// replayed takes one batch of the replay under way; payload is lent.
func (s *Sequencer) Replayed(now time.Time, seq uint64, payload []byte) {
	if s.phase != asking {
		return
	}
	s.deadline = now.Add(s.cfg.Timeout)
	s.served, s.answered = true, true
	if !s.verified && seq+1 == s.next {
		if batch, _ := s.recent.find(seq); !batch.is(payload) {
			s.restart()
			s.ask(now)
			return
		}
		s.verified = true
		s.out.Continued()
		return
	}
	if seq < s.next {
		// Older than asked for: no use, and no harm.
		return
	}
	s.verified = true
	if seq > s.next && s.progress {
		// A ROUTER drops what its peer does not take fast enough. Only a request
		// that begins with the hole proves that the engine does not have it.
		s.ask(now)
		return
	}
	if seq > s.next {
		s.lose(seq)
	}
	if !s.counted {
		// The tail was missing: nothing live had shown it.
		s.foundTail(seq)
	}
	if !s.apply(payload, s.requests) {
		// The engine itself keeps it like this; it will not get better.
		s.lose(seq + 1)
		return
	}
	s.count.Replayed.Add(1)
	s.progress = true
}

// replayEnd is the end mark of the replay under way.
func (s *Sequencer) ReplayEnd(now time.Time) {
	if s.phase != asking {
		return
	}
	s.phase = following
	if !s.verified && s.served && !s.gap {
		// An engine with a history that lacks our last batch has not made it yet.
		s.restart()
		s.ask(now)
		return
	}
	s.suspect = false
	if !s.closeGap(now) {
		s.retryOrLose(now)
	}
	s.drainIfFollowing(now)
}

// replayFailed gives up the replay under way: no answer in time, or the socket
// failed.
func (s *Sequencer) ReplayFailed(now time.Time) {
	if s.phase != asking {
		return
	}
	s.count.ReplayFailures.Add(1)
	s.phase = following
	switch {
	case !s.closeGap(now):
		s.retryOrLose(now)
	case s.suspect && len(s.held.frames) > 0:
		// Frames come, and nobody can tell whether the engine is the same: go by the
		// numbers.
		s.suspect = false
	default:
		s.suspect = s.suspect || s.served
	}
	s.drainIfFollowing(now)
}

// foundTail notes that last batches were missing, of which seq is one.
func (s *Sequencer) foundTail(seq uint64) {
	s.count.Gaps.Add(1)
	s.setGap(true)
	s.gapEnd, s.attempt, s.counted = seq, 0, true
}

// closeGap closes the present gap if it is filled. False means that one is left.
func (s *Sequencer) closeGap(now time.Time) bool {
	if !s.gap {
		return true
	}
	if s.next < s.gapEnd {
		return false
	}
	s.count.Repaired.Add(1)
	s.setGap(false)
	s.activity(now)
	return true
}

func (s *Sequencer) drainIfFollowing(now time.Time) {
	if s.phase == following {
		s.drain(now)
	}
}

// retryOrLose makes the next attempt at the present gap due, or gives it up. As
// long as every attempt brings something, they may be many.
func (s *Sequencer) retryOrLose(now time.Time) {
	if s.progress {
		s.attempt = 0
	}
	s.attempt++
	if s.attempt >= s.cfg.Attempts {
		s.lose(max(s.gapEnd, s.next))
		return
	}
	s.ask(now)
	s.retryAt = now.Add(backoff.Nth(backoff.Doubling(2*replayCooldown, maxReplayPause), s.attempt))
}
