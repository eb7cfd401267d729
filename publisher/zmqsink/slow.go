package zmqsink

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

const (
	// roomTimeout bounds the wait of a batch for a subscriber without room.
	roomTimeout = time.Second
	// A batch that waits for room is tried every roomPoll, and every stallPoll while the
	// sink is stalled.
	roomPoll  = time.Millisecond
	stallPoll = 50 * time.Millisecond
	// maxCatchUp is the longest pause between two announcements of the state to a
	// subscriber that may have missed something.
	maxCatchUp = 10 * time.Minute
	// warnEvery is the least time between two warnings.
	warnEvery = time.Minute
)

// slowSubscribers is the sender's state about subscribers that do not read. libzmq says
// that one of them has no room, but not which one. After a batch went to the others,
// libzmq does not say when the slow one reads again.
type slowSubscribers struct {
	// stalled: the only subscriber has no room. Nothing is sent until it takes waiting,
	// and then the whole state is announced. nextTry is the time of the next try.
	stalled    bool
	waiting    []byte
	waitingSeq uint64
	nextTry    time.Time
	// next is the time to announce the state because one of several subscribers missed a
	// batch; zero: none did. The pauses double, so a subscriber that never keeps up costs
	// the others little.
	next   time.Time
	pauses backoff.Pauses
	pause  time.Duration // the last one
	// warned is the time of the last warning.
	warned time.Time
}

// forget notes that there are no subscribers.
func (s *slowSubscribers) forget() { s.next = time.Time{} }

// stateAnnounced notes that the whole state was announced.
func (s *slowSubscribers) stateAnnounced(now time.Time) {
	if !s.next.IsZero() {
		s.postpone(now)
	}
}

// postpone begins the next pause.
func (s *slowSubscribers) postpone(now time.Time) {
	s.pause = s.pauses.NextBackOff()
	s.next = now.Add(s.pause)
}

// awaitRoom sends the batch with number seq, for which some subscriber has no room. It waits for
// room until Options.giveUp returns true. Then several subscribers get the batch without the slow ones. For a
// single subscriber the sink stalls: nothing is sent until the batch in slow.waiting has room. A
// passthrough does not stall, because it cannot announce the state afterwards.
func (n *sender) awaitRoom(seq uint64, payload []byte) {
	n.count.held.Add(1)
	for began, last := time.Now(), false; !last && !n.sink.closing.Load(); {
		// The wait below also takes note of what subscribers have read. What they have read
		// before the last wait counts.
		last = n.sink.opt.giveUp(seq, time.Since(began))
		found, err := n.sockets.waitForPeers(roomPoll)
		if err != nil {
			break // libzmq failed: the goroutine's next wait fails too, and ends it
		}
		n.serve(found)
		if n.trySend(seq, payload) {
			return
		}
	}
	if !n.sink.passthrough() && n.count.subscribers.Load() <= 1 {
		n.slow.stalled, n.slow.waiting, n.slow.waitingSeq, n.slow.nextTry = true, payload, seq, time.Now()
		n.warnSlow()
		return
	}
	n.sendToOthers(seq, payload)
}

// sendToOthers sends the batch with number seq to the subscribers that have room. For the slow
// ones the whole state will be announced after a pause: postpone sets its time. A passthrough
// has no state; the numbers show the slow subscribers the gap.
func (n *sender) sendToOthers(seq uint64, payload []byte) {
	n.count.missed.Add(1)
	n.sent(payload, n.sockets.publishToSome([]byte(n.sink.opt.Topic), sequenceFrame(seq), payload))
	if n.sink.passthrough() {
		return
	}
	n.warnSlow()
	// At the longest pause the pauses start over: a subscriber that missed a batch only now need
	// not wait ten minutes.
	if n.slow.next.IsZero() || n.slow.pause == maxCatchUp {
		n.slow.pauses = backoff.Doubling(n.sink.opt.ReannounceEvery, maxCatchUp)
		n.slow.postpone(time.Now())
	}
}

// warnSlow logs that a subscriber does not read, at most once per warnEvery.
func (n *sender) warnSlow() {
	now := time.Now()
	if now.Sub(n.slow.warned) < warnEvery {
		return
	}
	n.slow.warned = now
	n.sink.opt.Log.Warn("a subscriber does not read: the whole state is announced again",
		zap.Stringer("owner", n.sink.owner), zap.Uint64("subscribers", n.count.subscribers.Load()))
}

// catchUpDue returns when catchUp is due; zero is never.
func (n *sender) catchUpDue() time.Time {
	if n.slow.stalled {
		return n.slow.nextTry
	}
	return n.slow.next
}

// catchUp makes the whole state due for subscribers that missed a batch, when it is time. A
// stalled sink, whose only subscriber had no room, first sends its waiting batch. It stays
// stalled while that subscriber does not read.
func (n *sender) catchUp(now time.Time) {
	if at := n.catchUpDue(); at.IsZero() || now.Before(at) {
		return
	}
	if n.slow.stalled && !n.trySend(n.slow.waitingSeq, n.slow.waiting) {
		if n.count.subscribers.Load() <= 1 {
			n.slow.nextTry = now.Add(stallPoll)
			return
		}
		n.sendToOthers(n.slow.waitingSeq, n.slow.waiting) // others have subscribed
	}
	n.slow.stalled, n.slow.waiting = false, nil
	n.stateDue = true
}
