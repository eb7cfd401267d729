package engine

import (
	"time"

	"github.com/blockyard-ai/blockyard/agent/process"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// serveWorker lets a worker that said HELLO join its session, and serves it until its
// connection ends or BYE comes. p is the watch of its process. The session releases p, or
// serveWorker does if the worker may not join.
func (s *Server) serveWorker(c *proto.Conn, peer proto.Peer, p *process.Process, h *proto.Hello, corr uint32) error {
	sess, err := s.findSession(peer, h)
	if err == nil {
		err = retryWithoutSession(h, sess.admit(p))
	}
	if err != nil {
		s.sessions.refused.Add(1)
		_ = sendError(c, corr, 0, refusalOf(err))
		p.Release()
		return err
	}
	if err := c.Send(proto.TypeWelcome, corr, s.welcome(sess, h, s.pools.ID(sess.namespace)), nil); err != nil {
		return err
	}
	l := newWorkerLink(c, sess.pool)
	bye, err := s.runWorker(c, sess, l, h)
	if bye != nil {
		_ = c.Send(proto.TypeOK, bye.corr, nil, nil)
	}
	return err
}

// runWorker registers a worker and serves it until its connection ends or BYE comes. It returns
// the BYE; nil when the connection ended without one. The worker has left the session when
// runWorker returns.
func (s *Server) runWorker(c *proto.Conn, sess *session, l *workerLink, h *proto.Hello) (bye *bye, err error) {
	defer func() {
		if l.joined {
			sess.links.Done() // session.join called Add
		}
	}()
	if err := s.register(c, sess, l, h); err != nil {
		sess.leave(l, !s.isStopping()) // the worker may have joined and died before its OK
		return nil, err
	}
	reporter := s.reports.Reporter(sess.worker, h)
	defer reporter.Close()
	stop, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		_ = s.sessions.guard(sess.log, c, func() error { l.send(stop); return nil }) // guard logs a panic
	}()
	err = s.sessions.guard(sess.log, c, func() (err error) { bye, err = s.readWorker(c, reporter); return err })
	lost := bye == nil && !s.isStopping()
	sess.leave(l, lost)
	close(stop)
	<-sent
	return bye, err
}

// findSession returns the session that a worker joins: the one that HELLO names, or that of
// the worker's rank if HELLO names none. An error refuses the worker.
func (s *Server) findSession(peer proto.Peer, h *proto.Hello) (*session, error) {
	w := kv.Worker{ID: kv.WorkerID(h.WorkerID), Rank: kv.DPRank(h.DPRank)}
	sess := s.lookup(blockmgr.SessionID(h.Session), w)
	switch {
	case sess == nil && h.Session == 0:
		return nil, retryWithoutSession(h, errEnded)
	case sess == nil:
		return nil, refusal.New(proto.CodeNotFound, "HELLO session: %d is not a session of this agent", h.Session)
	case sess.uid != peer.UID:
		return nil, refusal.New(proto.CodeDenied, "HELLO session: %d belongs to another user", sess.id)
	case sess.worker != w:
		return nil, refusal.New(proto.CodeState, "HELLO worker_id %d, dp_rank %d: the session is of worker %s", h.WorkerID, h.DPRank, sess.worker)
	case !h.Namespace.IsZero() && sess.namespace != h.Namespace.ID():
		return nil, refusal.New(proto.CodeNamespace, "HELLO namespace: %s, but the session's is %s", h.Namespace.ID(), sess.namespace)
	}
	return sess, nil
}

// retryWithoutSession makes a not-found refusal retryable if the worker named no session: a
// session of its rank may begin at any time.
func retryWithoutSession(h *proto.Hello, err error) error {
	if err == nil || h.Session != 0 || refusalOf(err).Code != proto.CodeNotFound {
		return err
	}
	w := kv.Worker{ID: kv.WorkerID(h.WorkerID), Rank: kv.DPRank(h.DPRank)}
	return refusal.Retry(proto.CodeNotFound, "HELLO session: worker %s has none now", w)
}

// lookup returns the session with an id or, for id 0, the session of a worker rank. It returns
// nil when no such session has begun.
func (s *Server) lookup(id blockmgr.SessionID, w kv.Worker) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == 0 {
		if held := s.byWorker[w]; held != nil {
			id = held.id // still being made, it is not in byID
		}
	}
	return s.byID[id]
}

// register reads REGISTER and lets the worker join its session. It sends the client the error that
// it returns, which ends the connection. h is the worker's HELLO: if it named no session, the
// worker may try again when its rank has one.
func (s *Server) register(c *proto.Conn, sess *session, l *workerLink, h *proto.Hello) error {
	_ = c.SetReceiveDeadline(time.Now().Add(helloTimeout)) // fails only on a closed socket
	f, err := s.receive(c)
	if err != nil {
		return err
	}
	_ = c.SetReceiveDeadline(time.Time{})
	var m proto.Register
	switch {
	case f.Type != proto.TypeRegister:
		err = refusal.New(proto.CodeState, "%s came before %s", f.Type, proto.TypeRegister)
	default:
		if err = decodeFrame(f, &m); err == nil && m.Offset+m.BlockBytes > sess.pool.BlockBytes() {
			err = refusal.New(proto.CodeRange, "REGISTER offset %d, block_bytes %d: want a share of the session's %d", m.Offset, m.BlockBytes, sess.pool.BlockBytes())
		}
	}
	if err == nil {
		err = retryWithoutSession(h, sess.join(l))
	}
	if err != nil {
		s.sessions.refused.Add(1)
		_ = sendError(c, f.Corr, 0, refusalOf(err))
		return err
	}
	return c.Send(proto.TypeOK, f.Corr, nil, nil)
}

// readWorker reads until the connection ends or BYE comes. It returns the BYE. Besides BYE a
// worker sends STATS only.
func (s *Server) readWorker(c *proto.Conn, reporter *reports.Reporter) (bye *bye, err error) {
	for {
		f, err := s.receive(c)
		if err != nil {
			return nil, err
		}
		switch f.Type {
		case proto.TypeBye:
			if bye, err = decodeBye(f); err == nil {
				return bye, nil
			}
		case proto.TypeStats:
			_, err = decodeThen(f, noRequest[*proto.Stats], func(m *proto.Stats) error { return reporter.Take(m, time.Now()) })
		default:
			err = unexpected(f.Type, proto.RoleWorker)
		}
		if err != nil {
			if err := s.refuse(c, f, 0, err); err != nil {
				return nil, err
			}
		}
	}
}

// maxQueuedLoads bounds the LOADs that wait for one worker, besides those in its socket.
const maxQueuedLoads = 256

// workerLink is the agent's side of a worker's connection. Its own goroutine sends queued
// LOADs, so that a worker that does not read delays neither the scheduler nor other workers.
type workerLink struct {
	*link
	loads chan queuedLoad
	// joined is set by session.join, for the goroutine that reads the connection.
	joined bool
}

// queuedLoad is a LOAD and the slots that it names. All workers share both.
type queuedLoad struct {
	m     *proto.Load
	slots []blockmgr.Slot
}

func newWorkerLink(c *proto.Conn, pool *blockmgr.Pool) *workerLink {
	return &workerLink{link: newLink(c, pool), loads: make(chan queuedLoad, maxQueuedLoads)}
}

// offer queues a LOAD. The worker has stopped reading when the queue is full: offer then closes
// its connection and returns false.
func (l *workerLink) offer(q queuedLoad) bool {
	select {
	case l.loads <- q:
		return true
	default:
		l.conn.Close()
		return false
	}
}

// send sends queued LOADs to a worker, and announces extents (files of slots, which the worker must
// map before it copies) as they become ready, until stop is closed or the connection ends.
func (l *workerLink) send(stop <-chan struct{}) {
	extents, cancel := l.pool.WatchExtents()
	defer cancel()
	for {
		var err error
		select {
		case e, ok := <-extents:
			if !ok {
				return // the pool closes
			}
			err = l.announce(e)
		case q := <-l.loads:
			err = l.link.send(proto.TypeLoad, 0, q.m, q.slots)
		case <-stop:
			return
		}
		if err != nil {
			l.conn.Close() // a frame that cannot be encoded leaves the connection open
			return
		}
	}
}
