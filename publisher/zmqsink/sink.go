package zmqsink

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

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

	inbox   *publisher.Inbox
	raw     rawQueue
	closing atomic.Bool

	closeOnce sync.Once
}

// passthrough reports whether the sink forwards one engine's payloads unchanged. Such a sink has
// no state to announce.
func (s *Sink) passthrough() bool { return s.src == nil }

// New binds both sockets, for subscribers and for replays, and starts to serve. src is the stream
// whose events Publish will get; its owner must be o.Worker. tokens has the tokens of its blocks.
// Without src and tokens the sink is a passthrough: it forwards payloads. The caller calls Close.
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
	s.inbox = publisher.NewLendingInbox(maxQueueEvents, s.sockets.ring)
	// Event 1 is expected first. A stream that is further then shows a gap: the sink announces
	// the whole state.
	s.inbox.Resync(0)
	go newSender(s, tokens).run()
	return s, nil
}

// Endpoint returns the endpoint for subscribers, with the port that was bound.
func (s *Sink) Endpoint() string { return s.sockets.endpoint }

// ReplayEndpoint returns the endpoint for replays, with the port that was bound.
func (s *Sink) ReplayEndpoint() string { return s.sockets.replayEndpoint }

// Publish queues copies of events; see residency.Sink. It never blocks. Without room the queue is
// dropped and the whole state is announced again. Events of another owner are only counted, and
// so are all events in passthrough.
func (s *Sink) Publish(events []kvevent.RouterEvent) {
	from := 0 // first event of the present run of own events
	for i := range events {
		if s.src == nil || events[i].Owner != s.owner {
			s.count.foreign.Add(1)
			s.inbox.Add(events[from:i])
			from = i + 1
		}
	}
	s.inbox.Add(events[from:])
}

// Raw queues an engine's payload, which belongs to the sink from then on. It never
// blocks. Without room the payload is dropped, and its number is not used by another.
func (s *Sink) Raw(payload []byte) {
	switch s.raw.add(payload) {
	case rawClosed:
		s.count.afterClose.Add(1)
		return
	case rawDropped:
		s.count.droppedRaw.Add(1)
	}
	s.inbox.Wake()
}

// StateJoined implements residency.StateObserver: the whole state is announced
// again.
func (s *Sink) StateJoined() { s.inbox.MarkDirty() }

// Close sends the queued batches, for at most about a second, and closes the sockets. It
// is idempotent.
func (s *Sink) Close() {
	s.closing.Store(true)
	s.inbox.Wake()
	<-s.ended
	s.closeOnce.Do(s.sockets.close)
}

// end counts later events and payloads as too late, and keeps them from using the alarm.
func (s *Sink) end() {
	s.inbox.Close()
	s.raw.close()
}

// Bounds of the queues before the sending goroutine, and of the history behind it.
const (
	maxQueueEvents = 64 << 10
	maxRawPayloads = 64 << 10
	maxRawBytes    = 64 << 20
	// maxHistoryBytes bounds the payloads that are held for replays.
	maxHistoryBytes = 64 << 20
)

// Results of rawQueue.add.
const (
	rawQueued = iota
	rawDropped
	rawClosed
)

// rawQueue holds an engine's payloads, in order. A nil payload marks where payloads had
// to be dropped.
type rawQueue struct {
	mu       sync.Mutex
	payloads [][]byte
	bytes    int
	closed   bool
}

// add queues a payload for the sending goroutine and returns rawQueued. Without room it drops the
// payload and returns rawDropped. Payloads dropped in a row leave one nil in the queue, which may
// exceed the bound by one: the sender skips a number for it, so that subscribers see the loss.
// add returns rawClosed after close.
func (q *rawQueue) add(payload []byte) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch n := len(q.payloads); {
	case q.closed:
		return rawClosed
	case n < maxRawPayloads && q.bytes+len(payload) <= maxRawBytes:
		q.payloads = append(q.payloads, payload)
		q.bytes += len(payload)
		return rawQueued
	case n == 0 || q.payloads[n-1] != nil:
		q.payloads = append(q.payloads, nil)
	}
	return rawDropped
}

// take exchanges the queue for an empty one.
func (q *rawQueue) take(empty [][]byte) [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.payloads
	q.payloads, q.bytes = empty[:0], 0
	return taken
}

// close refuses further payloads.
func (q *rawQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.payloads, q.bytes = nil, 0
}
