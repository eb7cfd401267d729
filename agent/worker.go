package agent

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// serveWorker lets a worker that said hello join its session and serves it until
// its connection ends or it says BYE. It takes p over.
func (s *sessionServer) serveWorker(c *proto.Conn, peer proto.Peer, p *process, h *proto.Hello, corr uint32) error {
	sess, err := s.findSession(peer, h)
	if err == nil {
		err = sess.admit(p)
	}
	if err != nil {
		s.sessions.refused.Add(1)
		_ = sendError(c, corr, 0, refusalOf(err))
		p.release()
		return err
	}
	if err := c.Send(proto.TypeWelcome, corr, s.welcome(sess, h, poolID(s.cfg.Node, sess.namespace)), nil); err != nil {
		return err
	}
	l := newWorkerLink(c, sess.pool)
	bye, err := s.runWorker(c, sess, h, l)
	if bye != nil {
		_ = c.Send(proto.TypeOK, bye.Corr, nil, nil)
	}
	return err
}

// runWorker registers a worker and serves it until its connection ends or BYE
// comes, whose header it then returns. The session does not count on the worker
// any more, however it ended.
func (s *sessionServer) runWorker(c *proto.Conn, sess *session, h *proto.Hello, l *workerLink) (bye *proto.Header, err error) {
	if err := s.register(c, sess, h, l); err != nil {
		sess.leave(l, !s.isStopping()) // it may have joined and died before it was told so
		return nil, err
	}
	stop, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		l.send(stop)
	}()
	bye, err = s.readWorker(c)
	sess.leave(l, bye == nil && !s.isStopping())
	close(stop)
	<-sent
	return bye, err
}

// findSession is the session that a worker wants to join, if it may.
func (s *sessionServer) findSession(peer proto.Peer, h *proto.Hello) (*session, error) {
	s.mu.Lock()
	sess := s.byID[blockmgr.SessionID(h.Session)]
	s.mu.Unlock()
	switch {
	case sess == nil:
		return nil, refuse(proto.CodeNotFound, "HELLO session: %d is not a session of this agent", h.Session)
	case sess.uid != peer.UID:
		return nil, refuse(proto.CodeDenied, "HELLO session: %d belongs to another user", h.Session)
	case sess.worker != kv.Worker{ID: kv.WorkerID(h.WorkerID), Rank: kv.DPRank(h.DPRank)}:
		return nil, refuse(proto.CodeState, "HELLO worker_id %d, dp_rank %d: the session is of worker %s", h.WorkerID, h.DPRank, sess.worker)
	case sess.namespace != h.Namespace.ID():
		return nil, refuse(proto.CodeNamespace, "HELLO namespace: %s, but the session's is %s", h.Namespace.ID(), sess.namespace)
	}
	return sess, nil
}

// register reads REGISTER and lets the worker join. An error ends the
// connection; the client has been told.
func (s *sessionServer) register(c *proto.Conn, sess *session, h *proto.Hello, l *workerLink) error {
	_ = c.SetReceiveDeadline(time.Now().Add(helloTimeout)) // fails only on a closed socket
	f, err := s.receive(c)
	if err != nil {
		return err
	}
	_ = c.SetReceiveDeadline(time.Time{})
	var m proto.Register
	switch {
	case f.Type != proto.TypeRegister:
		err = refuse(proto.CodeState, "%s came before %s", f.Type, proto.TypeRegister)
	default:
		if err = decodeFrame(f, &m); err == nil && m.BlockBytes > h.Namespace.BlockBytes() {
			err = refuse(proto.CodeRange, "REGISTER block_bytes: %d, want at most the %d of the namespace's block", m.BlockBytes, h.Namespace.BlockBytes())
		}
	}
	if err == nil {
		err = sess.join(l)
	}
	if err != nil {
		s.sessions.refused.Add(1)
		_ = sendError(c, f.Corr, 0, refusalOf(err))
		return err
	}
	return c.Send(proto.TypeOK, f.Corr, nil, nil)
}

// readWorker reads until the connection ends or BYE comes, whose header it then
// returns. A worker has nothing else to say.
func (s *sessionServer) readWorker(c *proto.Conn) (bye *proto.Header, err error) {
	for {
		f, err := s.receive(c)
		if err != nil {
			return nil, err
		}
		err = unexpected(f.Type, proto.RoleWorker)
		if f.Type == proto.TypeBye {
			if err = decodeFrame(f, new(proto.Bye)); err == nil {
				return &f.Header, nil
			}
		}
		if err := s.report(c, f, 0, err); err != nil {
			return nil, err
		}
	}
}
