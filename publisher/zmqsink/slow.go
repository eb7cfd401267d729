package zmqsink

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

const (
	// roomPoll is how often a full subscriber is tried while a batch waits for it, and
	// mutePoll how often while nothing is sent.
	roomPoll = time.Millisecond
	mutePoll = 50 * time.Millisecond
	// maxCatchUp is the longest pause between two announcements of the state to a
	// subscriber that may have missed something.
	maxCatchUp = 10 * time.Minute
	// warnEvery is the least time between two warnings.
	warnEvery = time.Minute
)

// slowSubscribers is what the sender does about subscribers that do not read. libzmq
// tells that one of them is full, and not which. After a batch went without it, libzmq
// does not tell when it reads again.
type slowSubscribers struct {
	// mute: the only subscriber is full. Nothing is sent until it has taken the batch
	// that waits, and then the state is. nextTry is when to try.
	mute       bool
	waiting    []byte
	waitingSeq uint64
	nextTry    time.Time
	// next is when to say the state again because one of several subscribers missed a
	// batch; zero: none did. The pauses between double, so that a subscriber that never
	// keeps up costs the others little.
	next   time.Time
	pauses backoff.Pauses
	pause  time.Duration // the last one
	// warned is when the log was told.
	warned time.Time
}

// forget says that there are no subscribers.
func (s *slowSubscribers) forget() { s.next = time.Time{} }

// stated says that the state was said.
func (s *slowSubscribers) stated(now time.Time) {
	if !s.next.IsZero() {
		s.postpone(now)
	}
}

// postpone begins the next pause.
func (s *slowSubscribers) postpone(now time.Time) {
	s.pause = s.pauses.NextBackOff()
	s.next = now.Add(s.pause)
}

// awaitRoom sends a batch for which some subscriber has no room. It waits for room, but
// not longer than Options.patience. After that the batch goes to the other subscribers,
// if there are any, and the state is said again.
func (n *sender) awaitRoom(seq uint64, payload []byte) {
	n.count.held.Add(1)
	for end := time.Now().Add(n.sink.opt.patience); time.Now().Before(end) && !n.sink.closing.Load(); {
		found, err := n.sockets.waitForPeers(roomPoll)
		if err != nil {
			break // the goroutine's next wait fails too, and ends it
		}
		n.serve(found)
		if n.trySend(seq, payload) {
			return
		}
	}
	if n.sink.src != nil && n.count.subscribers.Load() <= 1 {
		n.slow.mute, n.slow.waiting, n.slow.waitingSeq, n.slow.nextTry = true, payload, seq, time.Now()
		n.warnSlow()
		return
	}
	n.leaveBehind(seq, payload)
}

// leaveBehind sends a batch to the subscribers that have room. The state will be said
// again to the others. In passthrough the numbers show the gap.
func (n *sender) leaveBehind(seq uint64, payload []byte) {
	n.count.missed.Add(1)
	n.sent(payload, n.sockets.publishToSome([]byte(n.sink.opt.Topic), sequenceFrame(seq), payload))
	if n.sink.src == nil {
		return
	}
	n.warnSlow()
	if n.slow.next.IsZero() || n.slow.pause == maxCatchUp {
		n.slow.pauses = backoff.Doubling(n.sink.opt.ReannounceEvery, maxCatchUp)
		n.slow.postpone(time.Now())
	}
}

func (n *sender) warnSlow() {
	now := time.Now()
	if now.Sub(n.slow.warned) < warnEvery {
		return
	}
	n.slow.warned = now
	n.sink.opt.Log.Warn("a subscriber does not read: the whole state is announced again",
		zap.Stringer("owner", n.sink.owner), zap.Uint64("subscribers", n.count.subscribers.Load()))
}

// catchUpDue is when catchUp is due; zero is never.
func (n *sender) catchUpDue() time.Time {
	if n.slow.mute {
		return n.slow.nextTry
	}
	return n.slow.next
}

// catchUp has the state said again to subscribers that missed something, if it is time.
func (n *sender) catchUp(now time.Time) {
	switch at := n.catchUpDue(); {
	case !n.slow.mute && at.IsZero() || now.Before(at):
		return
	case !n.slow.mute:
	case n.trySend(n.slow.waitingSeq, n.slow.waiting):
	case n.count.subscribers.Load() > 1:
		n.leaveBehind(n.slow.waitingSeq, n.slow.waiting) // others have come
	default:
		n.slow.nextTry = now.Add(mutePoll)
		return
	}
	n.slow.mute, n.slow.waiting = false, nil
	n.due = true
}
