package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// hangUpTime is how long the scheduler's connection may outlast the worker's when
// an agent dies. Beyond it the worker alone has lost its connection.
const hangUpTime = 100 * time.Millisecond

// agentGone reports whether it is the agent that ended the link, of which it may
// take the time wait to learn.
func (l *link) agentGone(wait time.Duration) bool {
	select {
	case <-l.sched.Done():
		return true
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-l.sched.Done():
		return true
	case <-timer.C:
		return false
	}
}

// lose ends what waits for the agent. No copy begins any more; those under way go
// on, because the next agent is told of their slots.
func (l *link) lose() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// drain lets no copy begin any more and waits, no longer than patience, until
// those under way have ended and the agent has what they filled.
func (l *link) drain(ctx context.Context, patience time.Duration) {
	l.mu.Lock()
	l.lost = true
	done := make(chan struct{})
	l.settledAll = done
	l.tellSettledLocked()
	l.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-l.sched.Done():
	case <-timer.C:
	case <-ctx.Done():
	}
}

// tellSettledLocked ends the wait of drain once nothing is granted or read.
func (l *link) tellSettledLocked() {
	if l.settledAll != nil && len(l.granted)+len(l.loading) == 0 {
		close(l.settledAll)
		l.settledAll = nil
	}
}

// beginStore notes slots that were granted and will be written; endStore follows.
// It is false when the link is lost: the next agent is not told of these slots.
func (l *link) beginStore(slots []proto.Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return false
	}
	for _, s := range slots {
		l.granted[s] = false
	}
	l.copies.Add(1)
	return true
}

// endStore says that the slots are not written any more. They stay granted until
// settled.
func (l *link) endStore(slots []proto.Slot, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		l.granted[s] = whole
	}
	l.copies.Done()
}

// settled forgets slots that were committed or aborted.
func (l *link) settled(slots []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		delete(l.granted, s)
	}
	l.tellSettledLocked()
}

// beginLoad notes slots that are pinned and will be read; endLoad follows. It is
// false when the link is lost.
func (l *link) beginLoad(slots []proto.Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return false
	}
	for _, s := range slots {
		l.loading[s]++
	}
	l.copies.Add(1)
	return true
}

func (l *link) endLoad(slots []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if l.loading[s]--; l.loading[s] == 0 {
			delete(l.loading, s)
		}
	}
	l.copies.Done()
	l.tellSettledLocked()
}

// held is what copies of a lost link use, and what they have filled. When that is
// more than can be named, it waits for the copies and then leaves some out.
func (l *link) held() proto.Held {
	if h := l.heldNow(); len(h.Granted)+len(h.Pinned) <= proto.MaxResumeSlots {
		return h
	}
	l.copies.Wait()
	h := l.heldNow()
	h.Granted = h.Granted[:min(len(h.Granted), proto.MaxResumeSlots)]
	return h
}

func (l *link) heldNow() proto.Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proto.Held{Granted: slices.Collect(maps.Keys(l.granted)), Pinned: slices.Collect(maps.Keys(l.loading))}
}

// sort tells slots that hold their block from those whose copy failed.
func (l *link) sort(slots []proto.Slot) (filled, spoilt []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if l.granted[s] {
			filled = append(filled, s)
		} else {
			spoilt = append(spoilt, s)
		}
	}
	return filled, spoilt
}

// resume tells the agent of l what the copies of left, a link with an agent that
// died, still use. When they have ended it gives everything back: what was filled
// is stored after all. It returns left with the error when the new agent went
// away too, so that the next one is told.
func (s *session) resume(ctx context.Context, left, l *liveLink) (*liveLink, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	kept, err := l.sched.Resume(ctx, left.welcome, left.held())
	var refused *proto.RefusedError
	switch {
	case errors.As(err, &refused):
		s.log.Warn("the agent does not let the session go on", zap.Error(err))
	case err != nil:
		return left, err
	default:
		left.copies.Wait()
		s.settle(ctx, left, l, kept)
	}
	left.close()
	return nil, nil
}

// settle gives back what was kept of a lost link, whose copies have ended.
func (s *session) settle(ctx context.Context, left, l *liveLink, kept proto.Held) {
	filled, spoilt := left.sort(kept.Granted)
	id := proto.RequestID{ID: proto.ResumedRequest}
	err := errors.Join(
		l.sched.Commit(ctx, id, filled),
		l.sched.Abort(id, spoilt),
		l.sched.Release(id, 0, len(kept.Pinned)),
	)
	if err != nil {
		s.log.Warn("what the earlier agent had granted is not settled", zap.Error(err))
		return
	}
	s.ctr.resumes.Add(1)
	s.ctr.resumedBlocks.Add(uint64(len(filled)))
	s.log.Info("session goes on with a new agent", zap.Int("stored", len(filled)), zap.Int("aborted", len(spoilt)), zap.Int("released", len(kept.Pinned)))
}
