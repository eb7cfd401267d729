package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	// liveHWM is how many frames libzmq holds for a slow subscriber; vLLM's default.
	liveHWM = 100000
	// publishQueue is how many batches may wait for the publisher. A step that
	// finds the queue full waits, as vLLM's does.
	publishQueue = 1024
	// publishLinger is how long frames may take to leave after close.
	publishLinger = 250 * time.Millisecond
	// wakeEndpoint connects publish to the publisher's goroutine, inside one
	// context.
	wakeEndpoint = "inproc://wake"
)

// publisherOptions are what a publisher is made of.
type publisherOptions struct {
	topic       string
	bufferSteps int
	drop        map[uint64]bool // sequence numbers that are not sent live
	ctr         *counters
}

// publisher sends event batches as vLLM's ZMQ publisher does: three frames
// [topic, sequence, payload] on a PUB socket, and whatever is still in the
// buffer again on request (replay.go). run is the only user of its sockets;
// publish and close may be called by anyone. Nothing polls: publish wakes run
// through an inproc pair.
type publisher struct {
	opts          publisherOptions
	events, again string // resolved endpoints

	zctx              *zmq.Context
	pub, router, wake *zmq.Socket // run's
	next              uint64      // run's: the next batch's sequence number
	buffer            replayBuffer

	queue   chan []byte
	pending atomic.Int64 // batches published and not yet sent
	closing chan struct{}
	ended   chan struct{}

	mu    sync.Mutex
	alarm *zmq.Socket // guarded by mu; nil once closed
}

// newPublisher binds both sockets to ephemeral loopback ports and starts the
// publisher's goroutine. The caller calls close.
func newPublisher(o publisherOptions) (*publisher, error) {
	p := &publisher{
		opts:    o,
		buffer:  replayBuffer{limit: o.bufferSteps},
		queue:   make(chan []byte, publishQueue),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	if err := p.bind(); err != nil {
		p.closeSockets()
		return nil, err
	}
	go p.run()
	return p, nil
}

func (p *publisher) bind() (err error) {
	if p.zctx, err = zmq.NewContext(); err != nil {
		return fmt.Errorf("event publisher: %w", err)
	}
	p.zctx.SetRetryAfterEINTR(true)
	if p.pub, p.events, err = p.socket(zmq.PUB, "tcp://127.0.0.1:*", liveHWM); err != nil {
		return fmt.Errorf("event publisher: %w", err)
	}
	// A replay may fill a peer's whole queue at once; ROUTER would drop the rest.
	if p.router, p.again, err = p.socket(zmq.ROUTER, "tcp://127.0.0.1:*", p.opts.bufferSteps+1); err != nil {
		return fmt.Errorf("event replay: %w", err)
	}
	if p.wake, _, err = p.socket(zmq.PAIR, wakeEndpoint, 1); err != nil {
		return fmt.Errorf("event publisher: %w", err)
	}
	if p.alarm, err = p.zctx.NewSocket(zmq.PAIR); err != nil {
		return fmt.Errorf("event publisher: %w", err)
	}
	if err = p.alarm.Connect(wakeEndpoint); err != nil {
		return fmt.Errorf("event publisher: connect %s: %w", wakeEndpoint, err)
	}
	return nil
}

// socket makes a bound socket and returns the endpoint that it got.
func (p *publisher) socket(t zmq.Type, endpoint string, hwm int) (*zmq.Socket, string, error) {
	s, err := p.zctx.NewSocket(t)
	if err != nil {
		return nil, "", err
	}
	err = errors.Join(s.SetSndhwm(hwm), s.SetLinger(publishLinger), s.Bind(endpoint))
	if err != nil {
		return s, "", fmt.Errorf("bind %s: %w", endpoint, err)
	}
	resolved, err := s.GetLastEndpoint()
	return s, resolved, err
}

// publish hands one encoded batch over; the publisher keeps it. It waits while
// the queue is full, and reports false once the publisher is closing.
func (p *publisher) publish(payload []byte) bool {
	p.pending.Add(1)
	select {
	case p.queue <- payload:
		p.ring()
		return true
	case <-p.closing:
		p.pending.Add(-1)
		return false
	}
}

// idle reports whether everything that was published has been sent.
func (p *publisher) idle() bool { return p.pending.Load() == 0 }

// ring makes run look at its queue. An alarm that finds the pair full is not
// lost: one that run has not seen yet is in it.
func (p *publisher) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alarm != nil {
		_, _ = p.alarm.SendBytes(nil, zmq.DONTWAIT)
	}
}

// run sends batches and answers replay requests until close.
func (p *publisher) run() {
	defer close(p.ended)
	poller := zmq.NewPoller()
	poller.Add(p.wake, zmq.POLLIN)
	poller.Add(p.router, zmq.POLLIN)
	for {
		ready, err := poller.Poll(-1)
		if err != nil {
			p.opts.ctr.framesFailed.Add(1)
			return
		}
		for _, s := range ready {
			switch s.Socket {
			case p.wake:
				p.drainAlarms()
				p.sendQueued()
			case p.router:
				p.answerReplays()
			}
		}
		select {
		case <-p.closing:
			p.sendQueued()
			return
		default:
		}
	}
}

func (p *publisher) drainAlarms() {
	for {
		if _, err := p.wake.RecvBytes(zmq.DONTWAIT); err != nil {
			return
		}
	}
}

func (p *publisher) sendQueued() {
	for {
		select {
		case payload := <-p.queue:
			p.send(payload)
			p.pending.Add(-1)
		default:
			return
		}
	}
}

// send numbers one batch, puts it into the replay buffer and, unless it is to
// be dropped, sends it.
func (p *publisher) send(payload []byte) {
	seq := p.next
	p.next++
	p.buffer.add(seq, payload)
	if p.opts.drop[seq] {
		p.opts.ctr.framesDropped.Add(1)
		return
	}
	if _, err := p.pub.SendMessage(p.opts.topic, sequenceFrame(seq), payload); err != nil {
		p.opts.ctr.framesFailed.Add(1)
		return
	}
	p.opts.ctr.framesSent.Add(1)
}

// close sends what is queued, waits for the goroutine and closes the sockets.
// Only its first call does anything.
func (p *publisher) close() {
	p.mu.Lock()
	first := p.alarm != nil
	if first {
		close(p.closing)
		// The alarm may be refused when one is pending already, which is as good.
		_, _ = p.alarm.SendBytes(nil, zmq.DONTWAIT)
		_ = p.alarm.Close()
		p.alarm = nil
	}
	p.mu.Unlock()
	<-p.ended
	if first {
		p.closeSockets()
	}
}

// closeSockets closes what bind opened. It waits for frames on their way to
// leave, at most publishLinger.
func (p *publisher) closeSockets() {
	for _, s := range []*zmq.Socket{p.pub, p.router, p.wake, p.alarm} {
		if s != nil {
			_ = s.Close()
		}
	}
	if p.zctx != nil {
		_ = p.zctx.Term()
	}
}

// sequenceFrame is the second frame of a live message.
func sequenceFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// wouldBlock reports whether a DONTWAIT call found nothing to do.
func wouldBlock(err error) bool { return zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) }
