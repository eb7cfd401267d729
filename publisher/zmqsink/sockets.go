package zmqsink

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	// maxRequestBytes bounds a message of a peer: a subscription or a replay request.
	maxRequestBytes = 4096
	// wakeEndpoint connects alarm and wake, inside one context.
	wakeEndpoint = "inproc://wake"
)

// sockets are a sink's sockets, in a context of their own. They belong to the sending
// goroutine. Only alarm is used elsewhere, under the inbox's lock.
type sockets struct {
	ctx                      *zmq.Context
	pub, router, wake, alarm *zmq.Socket
	poller, peers            *zmq.Poller // peers are poller's sockets without wake
	endpoint, replayEndpoint string
}

// openSockets binds the endpoints of o. The sending goroutine owns and closes the sockets. It waits
// with one of two pollers: s.poller also wakes up for queued events, s.peers only for messages
// of peers.
func openSockets(o *Options) (*sockets, error) {
	ctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("zmq context: %w", err)
	}
	ctx.SetRetryAfterEINTR(true)
	s := &sockets{ctx: ctx}
	if err := s.open(o); err != nil {
		s.close()
		return nil, err
	}
	s.poller, s.peers = zmq.NewPoller(), zmq.NewPoller()
	for _, k := range []*zmq.Socket{s.pub, s.router} {
		s.poller.Add(k, zmq.POLLIN)
		s.peers.Add(k, zmq.POLLIN)
	}
	s.poller.Add(s.wake, zmq.POLLIN)
	return s, nil
}

// open makes, configures and binds the sockets: a pair to wake the sending goroutine, the events
// socket and the replay socket. After an error the caller closes those that were made.
func (s *sockets) open(o *Options) (err error) {
	if s.wake, err = s.ctx.NewSocket(zmq.PAIR); err != nil {
		return fmt.Errorf("wake-up sockets: %w", err)
	}
	if s.alarm, err = s.ctx.NewSocket(zmq.PAIR); err != nil {
		return fmt.Errorf("wake-up sockets: %w", err)
	}
	if err = errors.Join(s.wake.Bind(wakeEndpoint), s.alarm.SetLinger(0), s.alarm.Connect(wakeEndpoint)); err != nil {
		return fmt.Errorf("wake-up sockets: %w", err)
	}
	// XPUB is PUB that reports subscriptions. Verboser makes it report every subscriber of
	// a topic, and every one that leaves.
	if s.pub, err = s.ctx.NewSocket(zmq.XPUB); err != nil {
		return fmt.Errorf("events socket: %w", err)
	}
	// Without NODROP libzmq drops a batch silently when a subscriber has no room.
	err = errors.Join(s.pub.SetXpubVerboser(1), s.pub.SetSndhwm(o.HWM), s.pub.SetXpubNodrop(true))
	if s.endpoint, err = bind(s.pub, o, o.Bind, err); err != nil {
		return err
	}
	if s.router, err = s.ctx.NewSocket(zmq.ROUTER); err != nil {
		return fmt.Errorf("replay socket: %w", err)
	}
	// A replay may fill a peer's whole queue at once, and ROUTER drops the rest. Peers
	// acknowledge half a queue at a time, so a queue of twice the size is always enough.
	s.replayEndpoint, err = bind(s.router, o, o.ReplayBind, s.router.SetSndhwm(2*(o.Buffer+1)))
	return err
}

// bind sets the options that the XPUB and the ROUTER socket share, binds s to endpoint, and
// returns the bound endpoint. err is the error of setting the socket's own options: unless nil,
// bind returns it and does not bind.
func bind(s *zmq.Socket, o *Options, endpoint string, err error) (string, error) {
	err = errors.Join(err, s.SetLinger(o.linger), s.SetMaxmsgsize(maxRequestBytes), s.SetTcpKeepalive(1))
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if err := s.Bind(endpoint); err != nil {
		return "", fmt.Errorf("bind %q: %w", endpoint, err)
	}
	return s.GetLastEndpoint()
}

// found says which sockets have messages.
type found struct{ subscription, replay bool }

// wait returns when a message arrives, when ring is called, or at until; a zero until is
// never.
func (s *sockets) wait(until time.Time) (found, error) {
	timeout := time.Duration(-1)
	if !until.IsZero() {
		// libzmq counts in milliseconds; rounding down would spin.
		timeout = max(0, time.Until(until).Truncate(time.Millisecond)+time.Millisecond)
	}
	return s.poll(s.poller, timeout)
}

// waitForPeers waits for messages of peers, for timeout at most. Calls of ring do not end the
// wait.
func (s *sockets) waitForPeers(timeout time.Duration) (found, error) { return s.poll(s.peers, timeout) }

// poll waits for messages on one of the sockets' two pollers, and reports which sockets of peers
// have some. A negative timeout is forever. poll drains the rings of the alarm, which only had
// to end the wait. An error means that libzmq failed.
func (s *sockets) poll(on *zmq.Poller, timeout time.Duration) (f found, err error) {
	polled, err := on.Poll(timeout)
	if err != nil {
		return found{}, fmt.Errorf("zmq poll: %w", err)
	}
	for _, p := range polled {
		switch p.Socket {
		case s.wake:
			s.drainAlarms()
		case s.pub:
			f.subscription = true
		case s.router:
			f.replay = true
		}
	}
	return f, nil
}

// ring makes wait return. A ring that finds the pair full changes nothing: the pair holds
// one that wait has not seen yet.
func (s *sockets) ring() { _, _ = s.alarm.SendBytes(nil, zmq.DONTWAIT) }

func (s *sockets) drainAlarms() {
	for {
		if _, err := s.wake.RecvBytes(zmq.DONTWAIT); err != nil {
			return
		}
	}
}

// receive takes one message, if there is one.
func (s *sockets) receive(from *zmq.Socket) (parts [][]byte, ok bool) {
	parts, err := from.RecvMessageBytes(zmq.DONTWAIT)
	return parts, err == nil
}

// publish sends to all subscribers, or to none: see isFull.
func (s *sockets) publish(parts ...[]byte) error { return send(s.pub, parts) }

// publishToSome sends to the subscribers that have room.
func (s *sockets) publishToSome(parts ...[]byte) error {
	if err := s.pub.SetXpubNodrop(false); err != nil {
		return err
	}
	return errors.Join(send(s.pub, parts), s.pub.SetXpubNodrop(true))
}

// isFull reports whether publish failed because a subscriber has no room.
func isFull(err error) bool { return err != nil && zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) }

// reply sends to the peer whose identity is the first part. ROUTER drops messages for a
// peer that has left.
func (s *sockets) reply(parts ...[]byte) error { return send(s.router, parts) }

// send sends parts as the frames of one message. It never blocks: isFull recognizes the error of a
// full queue.
func send(to *zmq.Socket, parts [][]byte) error {
	for i, p := range parts {
		flags := zmq.DONTWAIT
		if i < len(parts)-1 {
			flags |= zmq.SNDMORE
		}
		if _, err := to.SendBytes(p, flags); err != nil {
			return err
		}
	}
	return nil
}

// close closes the sockets. It waits until queued batches are sent, for Options.linger at most.
func (s *sockets) close() {
	for _, k := range []*zmq.Socket{s.pub, s.router, s.wake, s.alarm} {
		if k != nil {
			_ = k.Close() // it fails only for a socket that is closed
		}
	}
	_ = s.ctx.Term()
}
