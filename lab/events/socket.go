package events

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/pebbe/zmq4"
)

// subscribeTime bounds the wait for a subscriber.
const subscribeTime = 20 * time.Second

// socket is an engine's PUB socket that drops nothing for a slow subscriber. Its queue
// has no bound but the size of the run.
type socket struct {
	ctx      *zmq4.Context
	pub      *zmq4.Socket
	endpoint string
	next     uint64 // sequence number of the next batch
}

// openSocket returns a socket that publishes events as an engine does, on a free port. The caller
// closes it.
func openSocket() (s *socket, err error) {
	s = new(socket)
	if s.ctx, err = zmq4.NewContext(); err != nil {
		return nil, fmt.Errorf("zmq context: %w", err)
	}
	// XPUB is a PUB that tells who subscribes.
	if s.pub, err = s.ctx.NewSocket(zmq4.XPUB); err != nil {
		s.close()
		return nil, fmt.Errorf("zmq socket: %w", err)
	}
	err = errors.Join(s.pub.SetSndhwm(0), s.pub.SetLinger(0), s.pub.SetRcvtimeo(subscribeTime), s.pub.Bind("tcp://127.0.0.1:*"))
	if err == nil {
		s.endpoint, err = s.pub.GetLastEndpoint()
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("zmq socket: %w", err)
	}
	return s, nil
}

// awaitSubscriber returns when there is a subscriber. The subscriber gets every batch
// that is sent from then on.
func (s *socket) awaitSubscriber() error {
	if _, err := s.pub.RecvBytes(0); err != nil {
		return fmt.Errorf("no subscriber within %s: %w", subscribeTime, err)
	}
	return nil
}

// send publishes one encoded batch under the next sequence number.
func (s *socket) send(payload []byte) error {
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], s.next)
	s.next++
	if _, err := s.pub.SendMessage("", seq[:], payload); err != nil {
		return fmt.Errorf("send batch %d: %w", s.next-1, err)
	}
	return nil
}

// close closes the socket at any stage and drops unsent batches.
func (s *socket) close() {
	if s.pub != nil {
		_ = s.pub.Close()
	}
	_ = s.ctx.Term()
}
