package agent

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// drainReason is what DRAIN says, for people.
const drainReason = "the agent stops"

// drain asks every engine to let its copies end and to say BYE, and waits until
// all sessions have ended or patience has passed. No connection is accepted and no
// session begins from then on. It is called before close, once.
func (s *sessionServer) drain(patience time.Duration) {
	s.listener.Close()
	s.mu.Lock()
	s.drainEnd = time.Now().Add(patience)
	var open, told []*session
	for _, sess := range s.byOwner {
		open = append(open, sess)
		if sess.welcomed {
			told = append(told, sess)
		}
	}
	s.mu.Unlock()
	for _, sess := range told {
		s.tellDrain(sess)
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for _, sess := range open {
		select {
		case <-sess.answered:
		case <-timeout.C:
			s.mu.Lock()
			left := len(s.byOwner)
			s.mu.Unlock()
			s.log.Warn("engines were not done in time: what they were granted waits for their processes or for RESUME",
				zap.Int("sessions", left), zap.Duration("drain_timeout", patience))
			return
		}
	}
}

// noteWelcomed notes that a session's scheduler has its WELCOME, and sends DRAIN when
// the agent began to stop before.
func (s *sessionServer) noteWelcomed(sess *session) {
	s.mu.Lock()
	sess.welcomed = true
	draining := !s.drainEnd.IsZero()
	s.mu.Unlock()
	if draining {
		s.tellDrain(sess)
	}
}

// tellDrain sends DRAIN from a goroutine of its own: an engine that does not read
// must not cost the others their time.
func (s *sessionServer) tellDrain(sess *session) {
	s.wg.Go(func() {
		left := max(time.Until(s.drainEnd), 0)
		m := proto.Drain{DeadlineMillis: uint32(left.Milliseconds()), Reason: drainReason}
		_ = sess.sched.conn.Send(proto.TypeDrain, 0, &m, nil) // its reader learns of a connection that has ended
	})
}
