package consolidator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pebbe/zmq4"
)

const (
	// maxMessageBytes bounds one message from an engine; libzmq drops the
	// connection of a peer that exceeds it.
	maxMessageBytes = 64 << 20
	reconnectFirst  = 100 * time.Millisecond
	reconnectMax    = time.Second
	wakeEndpoint    = "inproc://wake"
	monitorEndpoint = "inproc://monitor"
)

// sockets are the ZMQ sockets of one rank, in a ZMQ context of their own. They belong
// to one goroutine. Only wakeSend belongs to the function that runs when the rank's
// context ends.
type sockets struct {
	ctx      *zmq4.Context
	sub      *zmq4.Socket
	wakeRecv *zmq4.Socket
	wakeSend *zmq4.Socket
	// monitor tells when the SUB socket has a peer.
	monitor *zmq4.Socket
	// dealer exists during a replay. Each replay gets a new socket, so that a late reply to
	// an abandoned request cannot be mistaken for an answer.
	dealer *zmq4.Socket
	poller *zmq4.Poller

	replayEndpoint string
	receiveHWM     int
	// stopWake detaches wakeSend from the rank's context. False means that wakeSend is in
	// use; woken is closed when it is free.
	stopWake func() bool
	woken    chan struct{}
}

// openSockets opens all sockets but dealer. It does not wait for the engine.
func openSockets(cfg *RankConfig) (*sockets, error) {
	zctx, err := zmq4.NewContext()
	if err != nil {
		return nil, fmt.Errorf("zmq context: %w", err)
	}
	s := &sockets{ctx: zctx, replayEndpoint: dialable(cfg.ReplayEndpoint), receiveHWM: cfg.ReceiveHWM}
	if err := s.openWake(); err != nil {
		s.close()
		return nil, fmt.Errorf("wake-up sockets: %w", err)
	}
	if err := s.openSub(cfg); err != nil {
		s.close()
		return nil, fmt.Errorf("events endpoint %q: %w", cfg.EventsEndpoint, err)
	}
	s.repoll()
	return s, nil
}

// openWake connects two sockets of this process: a message from wakeSend to wakeRecv ends a
// wait. After an error the caller closes s.
func (s *sockets) openWake() (err error) {
	if s.wakeRecv, err = s.ctx.NewSocket(zmq4.PAIR); err != nil {
		return err
	}
	if err = s.wakeRecv.Bind(wakeEndpoint); err != nil {
		return err
	}
	if s.wakeSend, err = s.ctx.NewSocket(zmq4.PAIR); err != nil {
		return err
	}
	return errors.Join(s.wakeSend.SetLinger(0), s.wakeSend.Connect(wakeEndpoint))
}

// openSub opens the SUB socket, which gets the engine's live messages, and its monitor. After an
// error the caller closes s.
func (s *sockets) openSub(cfg *RankConfig) (err error) {
	if s.sub, err = s.ctx.NewSocket(zmq4.SUB); err != nil {
		return err
	}
	err = errors.Join(
		s.sub.SetLinger(0),
		s.sub.SetRcvhwm(cfg.ReceiveHWM),
		s.sub.SetMaxmsgsize(maxMessageBytes),
		s.sub.SetReconnectIvl(reconnectFirst),
		s.sub.SetReconnectIvlMax(reconnectMax),
		s.sub.SetSubscribe(cfg.Topic),
	)
	if err != nil {
		return err
	}
	if err := s.openMonitor(); err != nil {
		return err
	}
	if cfg.Bind {
		return s.sub.Bind(cfg.EventsEndpoint)
	}
	return s.sub.Connect(dialable(cfg.EventsEndpoint))
}

// openMonitor opens the socket that gets a message when the SUB socket has made a handshake
// with the engine.
func (s *sockets) openMonitor() (err error) {
	if err = s.sub.Monitor(monitorEndpoint, zmq4.EVENT_HANDSHAKE_SUCCEEDED); err != nil {
		return fmt.Errorf("monitor: %w", err)
	}
	if s.monitor, err = s.ctx.NewSocket(zmq4.PAIR); err != nil {
		return err
	}
	return errors.Join(s.monitor.SetLinger(0), s.monitor.Connect(monitorEndpoint))
}

// wakeWhenDone makes wait return when ctx ends.
func (s *sockets) wakeWhenDone(ctx context.Context) {
	s.woken = make(chan struct{})
	s.stopWake = context.AfterFunc(ctx, func() {
		defer close(s.woken)
		// The peer is in this process and its queue is empty: this cannot block,
		// and if it fails the context is being closed anyway.
		_, _ = s.wakeSend.SendBytes(nil, zmq4.DONTWAIT)
	})
}

// ready is the result of wait: the rank's context has ended, messages are there, or the first
// handshake with the engine was made.
type ready struct{ done, live, replay, connected bool }

// wait blocks until something arrives or the rank's context ends, at most until the
// given time. A zero time is never.
func (s *sockets) wait(until time.Time) (ready, error) {
	timeout := time.Duration(-1)
	if !until.IsZero() {
		// libzmq counts in milliseconds; rounding down would spin.
		timeout = max(0, time.Until(until).Truncate(time.Millisecond)+time.Millisecond)
	}
	polled, err := s.poller.Poll(timeout)
	if err != nil {
		return ready{}, fmt.Errorf("zmq poll: %w", err)
	}
	var r ready
	for _, p := range polled {
		switch p.Socket {
		case s.wakeRecv:
			r.done = true
		case s.sub:
			r.live = true
		case s.dealer:
			r.replay = true
		case s.monitor:
			r.connected = true
			for _, more := s.receive(s.monitor); more; {
				_, more = s.receive(s.monitor)
			}
		}
	}
	return r, nil
}

// receive takes one message. False means that none is there.
func (s *sockets) receive(from *zmq4.Socket) (parts [][]byte, ok bool) {
	parts, err := from.RecvMessageBytes(zmq4.DONTWAIT)
	return parts, err == nil
}

// ask requests a replay of the batches from start on, on a new DEALER socket. The answers come
// to that socket.
func (s *sockets) ask(start uint64) error {
	s.hangUp()
	d, err := s.ctx.NewSocket(zmq4.DEALER)
	if err != nil {
		return err
	}
	s.dealer = d
	s.repoll()
	err = errors.Join(d.SetLinger(0), d.SetRcvhwm(s.receiveHWM), d.SetMaxmsgsize(maxMessageBytes), d.Connect(s.replayEndpoint))
	if err != nil {
		return fmt.Errorf("replay endpoint %q: %w", s.replayEndpoint, err)
	}
	request := replayRequest(start)
	_, err = d.SendMessageDontwait(request[0], request[1])
	return err
}

// hangUp ends the current replay, if there is one.
func (s *sockets) hangUp() {
	if s.dealer == nil {
		return
	}
	closeSocket(s.dealer)
	s.dealer = nil
	s.repoll()
}

// repoll makes a new poller after a change of sockets.
func (s *sockets) repoll() {
	s.poller = zmq4.NewPoller()
	for _, k := range []*zmq4.Socket{s.wakeRecv, s.sub, s.monitor, s.dealer} {
		if k != nil {
			s.poller.Add(k, zmq4.POLLIN)
		}
	}
}

// close closes all sockets that are open, and their ZMQ context.
func (s *sockets) close() {
	if s.stopWake != nil && !s.stopWake() {
		<-s.woken // another goroutine was using wakeSend
	}
	for _, k := range []*zmq4.Socket{s.sub, s.monitor, s.dealer, s.wakeSend, s.wakeRecv} {
		if k != nil {
			closeSocket(k)
		}
	}
	// All sockets are closed without linger, so Term does not wait. Nothing could be
	// done about an error.
	_ = s.ctx.Term()
}

// closeSocket closes k, which can fail only if it is closed already.
func closeSocket(k *zmq4.Socket) { _ = k.Close() }

// dialable turns an endpoint that an engine binds into one to connect to: a wildcard host
// becomes this machine.
func dialable(endpoint string) string {
	for _, wildcard := range []string{"tcp://*:", "tcp://0.0.0.0:"} {
		if port, ok := strings.CutPrefix(endpoint, wildcard); ok {
			return "tcp://127.0.0.1:" + port
		}
	}
	if port, ok := strings.CutPrefix(endpoint, "tcp://[::]:"); ok {
		return "tcp://[::1]:" + port
	}
	return endpoint
}

// parseLive reads the parts of a live message: topic, sequence number (u64
// big-endian), payload.
func parseLive(parts [][]byte) (seq uint64, payload []byte, err error) {
	if len(parts) != 3 {
		return 0, nil, fmt.Errorf("live message: %d parts, want 3", len(parts))
	}
	if len(parts[1]) != 8 {
		return 0, nil, fmt.Errorf("live message: sequence number of %d bytes, want 8", len(parts[1]))
	}
	return binary.BigEndian.Uint64(parts[1]), parts[2], nil
}

// reply is one message of a replay.
type reply struct {
	seq     uint64
	payload []byte
	end     bool
}

// parseReply reads the parts of a replay message as a DEALER gets them: an empty
// delimiter, the topic (vLLM since 2026-07, not SGLang), sequence number (u64
// big-endian), payload. The end mark has the number -1 and no payload.
func parseReply(parts [][]byte) (reply, error) {
	n := len(parts)
	if n != 3 && n != 4 {
		return reply{}, fmt.Errorf("replay message: %d parts, want 3 or 4", n)
	}
	if len(parts[0]) != 0 {
		return reply{}, fmt.Errorf("replay message: delimiter of %d bytes, want 0", len(parts[0]))
	}
	if len(parts[n-2]) != 8 {
		return reply{}, fmt.Errorf("replay message: sequence number of %d bytes, want 8", len(parts[n-2]))
	}
	r := reply{seq: binary.BigEndian.Uint64(parts[n-2]), payload: parts[n-1]}
	r.end = r.seq == math.MaxUint64 && len(r.payload) == 0
	return r, nil
}

// replayRequest returns the message that requests the batches from start on.
func replayRequest(start uint64) [2][]byte {
	return [2][]byte{{}, binary.BigEndian.AppendUint64(nil, start)}
}
