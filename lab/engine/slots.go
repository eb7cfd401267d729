package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// hangUpTime bounds the time between the ends of both connections when an agent dies.
// After it only the worker has lost its connection.
const hangUpTime = 100 * time.Millisecond

// agentGone reports whether the agent has ended the link, or ends it within the time wait.
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

// lose fails the calls that wait for the agent. No copy begins any more. Copies under
// way go on, because the next agent hears of their slots.
func (l *link) lose() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// drain forbids further copies and waits, for patience at most, until copies under way have
// ended and the agent has their blocks. The agent waits for that before it stops.
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

// beginStore records granted slots before a copy writes them; endStore follows. It returns
// false, and nothing may be written, when the link is lost: the next agent will not know the slots.
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

// endStore records that a copy into the slots has ended; whole is true when all bytes are there.
// The slots stay granted until settled.
func (l *link) endStore(slots []proto.Slot, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		l.granted[s] = whole
	}
	l.copies.Done()
}

// settled removes slots that the agent has as committed or aborted.
func (l *link) settled(slots []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		delete(l.granted, s)
	}
	l.tellSettledLocked()
}

// beginLoad records pinned slots before a copy reads them; endLoad follows. It returns false,
// and nothing may be read, when the link is lost.
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

// endLoad records that a copy out of the slots has ended.
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

// held returns the slots of a lost link that copies use or have filled, for RESUME. When they
// are too many for RESUME, it waits for the copies and leaves some filled ones out.
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

// splitFilled splits granted slots into those that have their block and those whose copy failed.
func (l *link) splitFilled(slots []proto.Slot) (filled, spoilt []proto.Slot) {
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
