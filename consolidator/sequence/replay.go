package sequence

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

// scheduleReplay makes a replay due: now, or after the cooldown that separates two
// replays for one gap.
func (s *Sequencer) scheduleReplay(now time.Time) {
	s.phase = replayDue
	s.retryAt = now
	if earliest := s.lastRequest.Add(replayCooldown); s.gap && earliest.After(now) {
		s.retryAt = earliest
	}
}

// Request returns the number of the first batch of the replay to start now. ok is false when no
// replay is due. The owner sends the request to the engine, and reports the answers with
// Replayed, ReplayEnd or ReplayFailed.
func (s *Sequencer) Request(now time.Time) (start uint64, ok bool) {
	if s.phase != replayDue || now.Before(s.retryAt) {
		return 0, false
	}
	s.count.Replays.Add(1)
	s.requests++
	s.phase = replaying
	s.lastRequest, s.deadline = now, now.Add(s.cfg.Timeout)
	s.replayAnswered, s.gapCounted, s.replayApplied = false, s.gap, false
	// The replay begins with the last applied batch, to compare its bytes: another incarnation of
	// the engine has others. There is nothing to compare before the first batch and after a loss.
	s.lastVerified = true
	if s.next > 0 {
		if _, remembered := s.recent.find(s.next - 1); remembered {
			s.lastVerified = false
			return s.next - 1, true
		}
	}
	return s.next, true
}

// Replayed takes batch seq of the current replay. The first should be the last applied batch,
// whose bytes are compared: s.lastVerified is false until then. Later ones are applied. Batches
// that the engine no longer has are lost. Outside of a replay the call does nothing. The payload
// is lent.
func (s *Sequencer) Replayed(now time.Time, seq uint64, payload []byte) {
	if s.phase != replaying {
		return
	}
	s.deadline = now.Add(s.cfg.Timeout) // of the next batch
	s.answersReplays, s.replayAnswered = true, true
	if !s.lastVerified && seq+1 == s.next {
		s.verifyLast(now, seq, payload)
		return
	}
	if seq < s.next {
		return // older than requested
	}
	s.lastVerified = true // the engine's history no longer has the last applied batch
	if seq > s.next && s.replayApplied {
		// A ZMQ ROUTER drops messages that its peer does not read fast enough. Only a replay
		// that begins with the missing batch proves that the engine does not have it.
		s.scheduleReplay(now)
		return
	}
	if seq > s.next {
		s.lose(seq)
	}
	if !s.gapCounted { // no live frame showed that this batch was missing
		s.foundTail(seq)
	}
	if !s.apply(payload, s.requests) {
		// The engine's history has the same unreadable bytes; another replay would not help.
		s.lose(seq + 1)
		return
	}
	s.count.Replayed.Add(1)
	s.replayApplied = true
}

// verifyLast compares the replayed batch seq with the last applied batch. If the bytes
// differ, the engine is another incarnation.
func (s *Sequencer) verifyLast(now time.Time, seq uint64, payload []byte) {
	if batch, _ := s.recent.find(seq); !batch.is(payload) {
		s.restart()
		s.scheduleReplay(now)
		return
	}
	s.lastVerified = true
	s.target.Continued()
}

// ReplayEnd takes the end mark of the current replay. If the gap is filled, the held live frames
// are applied; otherwise another replay is scheduled. If the engine's history lacks the last
// applied batch, the engine is another process, and the sequence restarts at batch 0.
func (s *Sequencer) ReplayEnd(now time.Time) {
	if s.phase != replaying {
		return
	}
	s.phase = following
	if !s.lastVerified && s.answersReplays && !s.gap {
		// The replay was to begin with our last batch, and brought nothing. An engine that keeps
		// a history and lacks that batch has not made it yet.
		s.restart()
		s.scheduleReplay(now)
		return
	}
	s.mayBeNewEngine = false
	s.replayOver(now, s.closeGap(now))
}

// ReplayFailed gives up the current replay: no answer in time, or the socket failed. An open gap
// gets another replay, and is lost after Config.Attempts. Without a gap the held live frames are
// taken. Outside of a replay the call does nothing.
func (s *Sequencer) ReplayFailed(now time.Time) {
	if s.phase != replaying {
		return
	}
	s.count.ReplayFailures.Add(1)
	s.phase = following
	closed := s.closeGap(now)
	switch {
	case !closed: // replayOver tries again
	case s.mayBeNewEngine && len(s.held.frames) > 0:
		// No replay can tell whether the engine is the same. The numbers of the held frames
		// decide: replayOver takes these frames.
		s.mayBeNewEngine = false
	default:
		// An engine that has answered before and does not now may be gone, and another be there.
		s.mayBeNewEngine = s.mayBeNewEngine || s.answersReplays
	}
	s.replayOver(now, closed)
}

// replayOver continues after a replay. It schedules the next attempt if the gap is still
// open, and else applies the held frames.
func (s *Sequencer) replayOver(now time.Time, gapClosed bool) {
	if !gapClosed {
		s.retryOrLose(now)
	}
	if s.phase == following {
		s.applyHeld(now)
	}
}

// foundTail opens a gap that no live frame has shown: batch seq is missing at the end.
func (s *Sequencer) foundTail(seq uint64) {
	s.count.Gaps.Add(1)
	s.setGap(true)
	s.gapEnd, s.attempt, s.gapCounted = seq, 0, true
}

// closeGap closes the present gap if it is filled. It returns false when a gap is left.
func (s *Sequencer) closeGap(now time.Time) bool {
	if !s.gap {
		return true
	}
	if s.next < s.gapEnd {
		return false
	}
	s.count.Repaired.Add(1)
	s.setGap(false)
	s.restartProbes(now)
	return true
}

// retryOrLose schedules the next replay for the open gap. After Config.Attempts replays in
// a row without a batch it gives the gap up.
func (s *Sequencer) retryOrLose(now time.Time) {
	if s.replayApplied {
		s.attempt = 0
	}
	s.attempt++
	if s.attempt >= s.cfg.Attempts {
		s.lose(max(s.gapEnd, s.next))
		return
	}
	s.scheduleReplay(now)
	s.retryAt = now.Add(backoff.Nth(backoff.Doubling(2*replayCooldown, maxReplayPause), s.attempt))
}
