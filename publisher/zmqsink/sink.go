package zmqsink

import (
	"errors"
	"fmt"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// Sink publishes one stream of events, or one engine's payloads. It is a
// residency.Sink and may be used from any goroutine.
type Sink struct {
	opt   Options
	owner kv.Owner
	src   publisher.Source // nil: passthrough
	count counters

	sockets *sockets
	ended   chan struct{}

	closeOnce sync.Once

	mu      sync.Mutex
	queue   queue
	closing bool
	// stale: the state has to be said again before any event is of use. grown: it has
	// to be said again because it is larger than what the events told.
	stale, grown bool
	// rung: the goroutine was told that there is something to do.
	rung bool
}

// New binds both sockets and starts to serve. src is whose events Publish will get:
// its owner must be o.Worker. Without src and tokens the sink is a passthrough. The
// caller calls Close.
func New(o Options, src publisher.Source, tokens Tokens) (*Sink, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("zmq sink: %w", err)
	}
	s := &Sink{opt: o, owner: kv.WorkerOwner(o.Worker), src: src, ended: make(chan struct{})}
	switch {
	case (src == nil) != (tokens == nil):
		return nil, errors.New("zmq sink: want both a source and tokens, or neither")
	case src != nil && src.Owner() != s.owner:
		return nil, fmt.Errorf("zmq sink of %s: the source is %s", s.owner, src.Owner())
	}
	if s.sockets, err = openSockets(&o); err != nil {
		return nil, fmt.Errorf("zmq sink of %s: %w", s.owner, err)
	}
	go newSender(s, tokens).run()
	return s, nil
}

// Endpoint is where subscribers can connect, with the port that was bound.
func (s *Sink) Endpoint() string { return s.sockets.endpoint }

// ReplayEndpoint is where replays can be asked for, with the port that was bound.
func (s *Sink) ReplayEndpoint() string { return s.sockets.replayEndpoint }

// Publish queues events, which are copied; see residency.Sink. It never blocks.
// When there is no room, what is queued is dropped and the whole state is said again.
func (s *Sink) Publish(events []kvevent.RouterEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		s.count.afterClose.Add(uint64(len(events)))
		return
	}
	for i := range events {
		e := &events[i]
		switch {
		case e.Owner != s.owner || s.src == nil:
			s.count.foreign.Add(1)
		case s.stale:
			s.count.dropped.Add(1)
		case !s.queue.add(e):
			s.count.overflows.Add(1)
			s.count.dropped.Add(uint64(s.queue.dropEvents()) + 1)
			s.stale = true
		}
	}
	s.ringLocked()
}

// Raw queues an engine's payload, which belongs to the sink from then on. It never
// blocks: without room the payload is dropped, and its number is not used by another.
func (s *Sink) Raw(payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		s.count.afterClose.Add(1)
		return
	}
	if !s.queue.addRaw(payload) {
		s.count.droppedRaw.Add(1)
	}
	s.ringLocked()
}

// StateJoined implements residency.StateObserver: the whole state is said again.
func (s *Sink) StateJoined() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grown = true
	s.ringLocked()
}

// Close sends what is queued, for at most about a second, and closes the sockets. It
// is idempotent.
func (s *Sink) Close() {
	s.beginClose()
	<-s.ended
	s.closeOnce.Do(s.sockets.close)
}

func (s *Sink) beginClose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ringLocked()
	s.closing = true
}

func (s *Sink) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// ringLocked tells the goroutine that there is something to do. After Close has begun
// the alarm may be closed, and nobody needs it.
func (s *Sink) ringLocked() {
	if !s.rung && !s.closing {
		s.rung = true
		s.sockets.ring()
	}
}

// takeQueue exchanges the queue for an empty one. sayState: the whole state has to be
// said again.
func (s *Sink) takeQueue(empty *queue) (sayState, closing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue, *empty = *empty, s.queue
	sayState = s.stale || s.grown
	s.grown, s.rung = false, false
	return sayState, s.closing
}

// beginState accepts events again: those of the snapshot that is taken next are known
// by their ids.
func (s *Sink) beginState() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = false
}

// end makes Publish count what nobody will send.
func (s *Sink) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	s.queue.reset()
}
