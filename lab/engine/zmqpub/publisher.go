package zmqpub

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
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

// anyPort is any free port of this machine.
const anyPort = "tcp://127.0.0.1:*"

// Options say what a publisher sends.
type Options struct {
	Topic string
	// Events and Replay are the endpoints to bind. Empty means any free port.
	Events, Replay string
	// BufferSteps is how many batches can be replayed.
	BufferSteps int
	// Drop are the sequence numbers that are not sent live.
	Drop map[uint64]bool
}

// Stats count frames.
type Stats struct {
	// Frames sent live, left out on purpose, replayed, and lost because libzmq
	// refused them; replay requests that were malformed and ignored.
	FramesSent     uint64 `json:"frames_sent"`
	FramesDropped  uint64 `json:"frames_dropped"`
	FramesReplayed uint64 `json:"frames_replayed"`
	FramesFailed   uint64 `json:"frames_failed"`
	ReplaysIgnored uint64 `json:"replays_ignored"`
}

// Publisher sends event batches as vLLM's ZMQ publisher does: three frames
// [topic, sequence, payload] on a PUB socket. On request it sends a batch that is
// still in the buffer again. Any goroutine may call its methods.
type Publisher struct {
	// Events and Replay are the endpoints of both sockets.
	Events, Replay string

	opts Options

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
	stats Stats       // guarded by mu
}

// New binds both sockets and starts the publisher's goroutine. The caller calls Close.
func New(o Options) (*Publisher, error) {
	p := &Publisher{
		opts:    o,
		buffer:  replayBuffer{limit: o.BufferSteps},
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

// bind opens the publisher's sockets: PUB for events, ROUTER for replays, and a pair by which
// Publish wakes the goroutine that alone may use the first two. After an error the caller closes
// the sockets.
func (p *Publisher) bind() (err error) {
	if p.zctx, err = zmq.NewContext(); err != nil {
		return fmt.Errorf("event publisher: %w", err)
	}
	p.zctx.SetRetryAfterEINTR(true)
	if p.pub, p.Events, err = p.socket(zmq.PUB, cmp.Or(p.opts.Events, anyPort), liveHWM); err != nil {
		return fmt.Errorf("event publisher: %w", err)
	}
	// A replay may fill a peer's whole queue at once; ROUTER would drop the rest.
	if p.router, p.Replay, err = p.socket(zmq.ROUTER, cmp.Or(p.opts.Replay, anyPort), p.opts.BufferSteps+1); err != nil {
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

// socket returns a socket of type t bound to endpoint, and the endpoint with the port that it
// got. hwm is the number of messages that a peer's queue holds.
func (p *Publisher) socket(t zmq.Type, endpoint string, hwm int) (*zmq.Socket, string, error) {
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

// Publish hands one encoded batch over; the publisher keeps it. It waits while
// the queue is full, and reports false once the publisher is closing.
func (p *Publisher) Publish(payload []byte) bool {
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

// Stats returns what was counted since the start.
func (p *Publisher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// count adds 1 to a field of p.stats.
func (p *Publisher) count(field *uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*field++
}

// Idle reports whether everything that was published has been sent.
func (p *Publisher) Idle() bool { return p.pending.Load() == 0 }

// ring makes run look at its queue. An alarm that finds the pair full is not
// lost: one that run has not seen yet is in it.
func (p *Publisher) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alarm != nil {
		_, _ = p.alarm.SendBytes(nil, zmq.DONTWAIT)
	}
}

// run sends batches and answers replay requests until Close. Only its goroutine uses the PUB and
// ROUTER sockets.
func (p *Publisher) run() {
	defer close(p.ended)
	poller := zmq.NewPoller()
	poller.Add(p.wake, zmq.POLLIN)
	poller.Add(p.router, zmq.POLLIN)
	for {
		ready, err := poller.Poll(-1)
		if err != nil {
			p.count(&p.stats.FramesFailed)
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

func (p *Publisher) drainAlarms() {
	for {
		if _, err := p.wake.RecvBytes(zmq.DONTWAIT); err != nil {
			return
		}
	}
}

// sendQueued sends the batches that wait in the queue.
func (p *Publisher) sendQueued() {
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
func (p *Publisher) send(payload []byte) {
	seq := p.next
	p.next++
	p.buffer.add(seq, payload)
	if p.opts.Drop[seq] {
		p.count(&p.stats.FramesDropped)
		return
	}
	if _, err := p.pub.SendMessage(p.opts.Topic, sequenceFrame(seq), payload); err != nil {
		p.count(&p.stats.FramesFailed)
		return
	}
	p.count(&p.stats.FramesSent)
}

// Close sends what is queued, waits for the goroutine and closes the sockets.
// Only its first call does anything.
func (p *Publisher) Close() {
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
func (p *Publisher) closeSockets() {
	for _, s := range []*zmq.Socket{p.pub, p.router, p.wake, p.alarm} {
		if s != nil {
			_ = s.Close()
		}
	}
	if p.zctx != nil {
		_ = p.zctx.Term()
	}
}

// sequenceFrame returns the second frame of a live message.
func sequenceFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// wouldBlock reports whether a DONTWAIT call found nothing to do.
func wouldBlock(err error) bool { return zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) }

// replayEnd is the sequence number that ends a replay: -1 as vLLM packs it.
const replayEnd = ^uint64(0)

// replayBuffer holds the payloads of the last limit batches; batch seq lies at
// seq modulo limit. It belongs to the publisher's goroutine.
type replayBuffer struct {
	limit    int
	next     uint64 // one after the youngest batch
	payloads [][]byte
}

// add keeps the payload of batch seq, which follows the one added last, and
// forgets the oldest when the buffer is full.
func (b *replayBuffer) add(seq uint64, payload []byte) {
	if len(b.payloads) < b.limit {
		b.payloads = append(b.payloads, payload)
	} else {
		b.payloads[seq%uint64(b.limit)] = payload
	}
	b.next = seq + 1
}

// from iterates over the batches with numbers of at least start that are still
// held, oldest first.
func (b *replayBuffer) from(start uint64) iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		for seq := max(start, b.next-uint64(len(b.payloads))); seq < b.next; seq++ {
			if !yield(seq, b.payloads[seq%uint64(b.limit)]) {
				return
			}
		}
	}
}

// answerReplays serves every replay request that has arrived. A request is
// [identity, "", first sequence]; anything else is ignored, as vLLM ignores it.
// The answer is one message per batch, then one that marks the end. A start
// below the buffer gets what is left: the asker sees it by the first number.
func (p *Publisher) answerReplays() {
	for {
		msg, err := p.router.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil {
			if !wouldBlock(err) {
				p.count(&p.stats.FramesFailed)
			}
			return
		}
		if len(msg) != 3 || len(msg[1]) != 0 || len(msg[2]) != 8 {
			p.count(&p.stats.ReplaysIgnored)
			continue
		}
		p.replay(msg[0], binary.BigEndian.Uint64(msg[2]))
	}
}

// replay sends peer the buffered batches from the number start on, and then the message that
// marks the end.
func (p *Publisher) replay(peer []byte, start uint64) {
	for seq, payload := range p.buffer.from(start) {
		if _, err := p.router.SendMessage(peer, "", p.opts.Topic, sequenceFrame(seq), payload); err != nil {
			p.count(&p.stats.FramesFailed)
			return
		}
		p.count(&p.stats.FramesReplayed)
	}
	if _, err := p.router.SendMessage(peer, "", "", sequenceFrame(replayEnd), ""); err != nil {
		p.count(&p.stats.FramesFailed)
	}
}

// ChooseDrops returns n different numbers of batches that a publisher drops, so that its
// subscribers must repair gaps. They are among the first n*dropSpread of a stream, and never 0,
// with which a subscriber learns that the stream began. Equal seeds and workers give equal
// numbers.
func ChooseDrops(n int, seed uint64, worker uint64) map[uint64]bool {
	drops := make(map[uint64]bool, n)
	r := rand.New(rand.NewPCG(seed, worker))
	for len(drops) < n {
		drops[1+r.Uint64N(uint64(n)*dropSpread)] = true
	}
	return drops
}

// dropSpread is how many frames there are, on average, to each dropped one.
const dropSpread = 8
