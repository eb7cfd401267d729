package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/process"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// serveScheduler makes a session for a scheduler that said HELLO, and serves it until its
// connection ends or BYE comes. p is the watch of its process. The session releases p, or
// serveScheduler does if no session begins. The error says why none began; the log says how a
// session ended.
func (s *Server) serveScheduler(c *proto.Conn, peer proto.Peer, p *process.Process, h *proto.Hello, corr uint32) error {
	sess, pool, err := s.newSession(c, peer, p, h)
	if err != nil {
		s.sessions.refused.Add(1)
		_ = sendError(c, corr, 0, refusalOf(err))
		p.Release()
		return err
	}
	sess.log.Info("session began", zap.String("engine", h.Engine), zap.String("connector", h.Connector),
		zap.String("incarnation", fmt.Sprintf("%016x", h.Incarnation)), zap.Int32("pid", peer.PID), zap.Stringer("namespace", sess.namespace))
	defer close(sess.answered) // Drain waits for it
	var evicted *events.EvictionQueue
	if h.WantEvicted { // before WELCOME: after it the engine relies on notices
		evicted = s.hub.ListenEvictions(sess.namespace)
		defer evicted.Close()
	}
	if err = c.Send(proto.TypeWelcome, corr, s.welcome(sess, h, pool), nil); err != nil {
		s.end(sess, nil, err)
		return nil
	}
	s.markWelcomed(sess)
	sess.lists.open() // the agent may ask for the engine's cached hashes from now on
	stop := make(chan struct{})
	var senders sync.WaitGroup
	senders.Go(func() { sess.guarded(func() { sess.sched.watch(stop) }) })
	if evicted != nil {
		senders.Go(func() { sess.guarded(func() { evicted.Run(c, stop) }) })
	}
	var bye *bye
	err = sess.guard(func() (err error) { bye, err = s.readScheduler(sess); return err })
	close(stop)
	senders.Wait()
	s.end(sess, bye, err)
	if bye != nil {
		_ = c.Send(proto.TypeOK, bye.corr, nil, nil)
	}
	return nil
}

// welcome returns the answer to HELLO. pool is the id by which routers know the session's pool.
func (s *Server) welcome(sess *session, h *proto.Hello, pool uint64) *proto.Welcome {
	return &proto.Welcome{
		Major: proto.VersionMajor, Minor: min(h.Minor, proto.VersionMinor),
		Session: uint64(sess.id), AgentNonce: s.nonce,
		NamespaceID: sess.namespace[:], Pool: pool,
		BlockBytes: sess.pool.BlockBytes(), SlotBytes: sess.pool.SlotBytes(),
		MaxRequests: uint32(s.cfg.MaxRequests), MaxPins: uint32(s.cfg.MaxPins),
		HostEnabled: sess.pool.Configured(), Warning: sess.rank.Warning(),
	}
}

// newSession makes a session and returns it with the id of its pool. It reserves the worker
// rank first, so that two engines that claim one rank do not both open its parts. The session
// releases p; an error leaves p to the caller.
func (s *Server) newSession(c *proto.Conn, peer proto.Peer, p *process.Process, h *proto.Hello) (*session, uint64, error) {
	sess := s.makeSession(c, peer, p, h)
	if err := s.reserve(sess); err != nil {
		sess.cancel()
		return nil, 0, err
	}
	var pool uint64
	err := sess.guard(func() (err error) { pool, err = s.openParts(sess, c, h); return err })
	if err != nil {
		sess.cancel()
		s.remove(sess)
		close(sess.answered)
		return nil, 0, err
	}
	s.mu.Lock()
	s.byID[sess.id] = sess
	s.mu.Unlock()
	return sess, pool, nil
}

// makeSession returns a session without pool, link and rank, which openParts adds.
func (s *Server) makeSession(c *proto.Conn, peer proto.Peer, p *process.Process, h *proto.Hello) *session {
	w := kv.Worker{ID: kv.WorkerID(h.WorkerID), Rank: kv.DPRank(h.DPRank)}
	sess := &session{
		id: blockmgr.SessionID(kv.RandomID()), worker: w, namespace: h.Namespace.ID(), uid: peer.UID,
		conn: c, engine: p, procs: []*process.Process{p}, enlisted: map[blockmgr.Process]struct{}{p.ID: {}},
		log: s.log.With(zap.Stringer("worker", w)), count: &s.sessions, cfg: &s.cfg,
		previous: s.previous, cache: s.cache, reports: s.reports.Reporter(w, h), files: s.hub.Descriptors(h),
		lists: newCachedLists(askList(c, h), func() { s.sessions.listsDropped.Add(1) }),
		chain: newChain(&h.Namespace, s.tokens, s.ownerOf), lookupSlots: make(chan struct{}, maxWaitingLookups),
		requests: make(map[uint64]*request), superseded: make(map[requestName]*request), workers: make(map[*workerLink]struct{}),
		done: make(chan struct{}), answered: make(chan struct{}),
	}
	sess.ctx, sess.cancel = context.WithCancel(context.Background())
	return sess
}

// ownerOf returns the owner of blocks with a cache salt. It asks for the manager late: a session
// is made outside the guard that answers for a panic.
func (s *Server) ownerOf(salt string) uint64 { return s.pools.Manager().OwnerOf(salt) }

// reserve makes sess the session of its worker rank. It waits a bounded time for a session of
// the rank that is ending.
func (s *Server) reserve(sess *session) error {
	timeout := time.NewTimer(replaceTimeout)
	defer timeout.Stop()
	for {
		old, err := s.tryReserve(sess)
		if err != nil || old == nil {
			return err
		}
		if old.orphaned() {
			old.conn.Close() // a child of the dead engine holds the connection open
		}
		select {
		case <-old.done:
		case <-timeout.C:
			return refusal.Retry(proto.CodeState, "worker %s has a session already", sess.worker)
		}
	}
}

// tryReserve makes sess the session of its worker rank, or returns the session that has the
// rank. It refuses sess when the agent stops, or when maxAwaitingExit ended sessions of the
// process wait for its exit.
func (s *Server) tryReserve(sess *session) (old *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.drainEnd.IsZero() {
		return nil, refusal.Retry(proto.CodeState, "the agent is stopping")
	}
	if n := s.awaitingExit[sess.engine.Key]; n >= maxAwaitingExit {
		return nil, refusal.Retry(proto.CodeLimit, "this process ended %d sessions without BYE and with granted slots, limit %d: the slots wait for it to exit", n, maxAwaitingExit)
	}
	if old = s.byWorker[sess.worker]; old == nil {
		s.byWorker[sess.worker] = sess
	}
	return old, nil
}

// openParts opens the session's pool, link and event streams. It returns the id of the pool.
// An error or a panic leaves nothing open.
func (s *Server) openParts(sess *session, c *proto.Conn, h *proto.Hello) (uint64, error) {
	if err := s.files.Reserve(sess.files); err != nil { // file descriptors
		return 0, err
	}
	defer func() {
		if sess.rank == nil { // a later part has failed: the rank is the last one
			s.files.Release(sess.files)
		}
	}()
	pool, stream, err := s.pools.Open(&h.Namespace, func(pool *blockmgr.Pool) error {
		s.previous.forgetIdle(pool) // sessions of an earlier agent that hold no slot end
		return pool.BeginSession(sess.id, sess.engine.ID)
	})
	if err != nil {
		return 0, err
	}
	sess.pool, sess.sched = pool, newLink(c, pool)
	defer func() {
		if sess.rank == nil {
			pool.EndSession(sess.id, nil)
		}
	}()
	engine := events.Engine{
		Guard: sess.guard, ListTimeout: listTimeout, Gauges: sess.gauges,
		Copies: func() events.CopySum { return events.CopySum(s.reports.Copies(sess.worker)) },
	}
	if h.ListsCached {
		engine.Cached = sess.cachedHashes
	}
	if sess.rank, err = s.hub.StartRank(h, stream, engine); err != nil {
		return 0, err
	}
	return stream.Owner().ID, nil
}

// remove makes the worker rank of an ended session free for another one and wakes those that
// wait for it.
func (s *Server) remove(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, sess.id)
	delete(s.byWorker, sess.worker)
	close(sess.done)
}

// end ends a session after its reader has returned. In order: lookups return, pins drop, grants
// are freed or quarantined, the rank's stream ends, and the worker rank is free. BYE frees the
// grants. Without BYE (bye is nil) they are quarantined until every process has exited. cause
// is the error that ended the connection, for the log.
func (s *Server) end(sess *session, bye *bye, cause error) {
	defer s.remove(sess) // also after a panic of the pool or of a stream
	defer s.files.Release(sess.files)
	defer sess.reports.Close()
	defer sess.rank.Stop()
	left := sess.finish()
	sess.log.Info("session ended", zap.Bool("bye", bye != nil), zap.String("reason", bye.text()),
		zap.Int("granted", left.grants), zap.NamedError("cause", abnormalEnd(cause)))
	sess.cancel()
	for _, w := range left.workers {
		w.conn.Close()
	}
	sess.links.Wait() // the workers use the pool until they have left
	sess.lookups.Wait()
	var gone chan struct{} // nil after BYE: no copy is in flight
	if bye == nil {
		gone = make(chan struct{})
	}
	switch held := sess.pool.EndSession(sess.id, gone); {
	case held:
		s.awaitExit(sess, left.procs, gone)
	case bye == nil: // only the checkpoint waits for the processes
		s.wg.Go(func() {
			sess.rank.RemoveCheckpointAfter(exits(left.procs))
			process.ReleaseAll(left.procs)
		})
	default:
		process.ReleaseAll(left.procs)
	}
	if bye != nil && !s.draining() { // an engine that says BYE to a stopping agent comes back
		sess.rank.RemoveCheckpoint()
	}
}

// draining reports whether the agent has begun to stop.
func (s *Server) draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || !s.drainEnd.IsZero()
}

// awaitExit waits in the background until all of procs, the processes of an ended session without
// BYE, have exited. Then it closes gone, by which the block manager frees the session's granted
// slots. When the agent stops first, gone stays open and the next agent waits for procs.
func (s *Server) awaitExit(sess *session, procs []*process.Process, gone chan<- struct{}) {
	key := sess.engine.Key // tryReserve bounds such sessions of one process
	s.mu.Lock()
	s.awaitingExit[key]++
	s.mu.Unlock()
	s.wg.Go(func() {
		defer func() {
			process.ReleaseAll(procs)
			s.mu.Lock()
			if s.awaitingExit[key]--; s.awaitingExit[key] == 0 {
				delete(s.awaitingExit, key)
			}
			s.mu.Unlock()
		}()
		if !process.AllExited(procs, s.stopping) {
			return
		}
		close(gone)
		sess.rank.RemoveCheckpoint()
		sess.log.Info("all processes of the session are gone")
	})
}

// exits returns the channels that are closed when procs exit.
func exits(procs []*process.Process) []<-chan struct{} {
	all := make([]<-chan struct{}, len(procs))
	for i, p := range procs {
		all[i] = p.Exited()
	}
	return all
}

// leftovers are the connections, processes and granted slots of an ended session.
type leftovers struct {
	workers []*workerLink
	procs   []*process.Process
	grants  int
}

// finish marks the session as ended and returns its leftovers. The reader has returned, so that
// the grants do not change.
func (s *session) finish() leftovers {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	left := leftovers{workers: slices.Collect(maps.Keys(s.workers)), procs: s.procs, grants: s.grants}
	s.procs = nil
	return left
}

// orphaned reports whether the scheduler's process has exited although its connection is open.
func (s *session) orphaned() bool { return s.engine.Gone() }

// readScheduler handles frames until the connection ends or BYE comes, which it returns.
func (s *Server) readScheduler(sess *session) (bye *bye, err error) {
	c := sess.sched.conn
	for {
		f, err := s.receive(c)
		if err != nil {
			return nil, err
		}
		if f.Type == proto.TypeBye {
			if bye, err = decodeBye(f); err == nil {
				return bye, nil
			}
		}
		var request uint64
		if err == nil {
			request, err = sess.handle(f)
		}
		if err != nil {
			if err := s.refuse(c, f, request, err); err != nil {
				return nil, err
			}
		}
	}
}

// drainReason is the text of DRAIN.
const drainReason = "the agent stops"

// Drain asks every engine to finish its copies and to say BYE. It returns when all sessions
// have ended, or after patience. From then on no connection is accepted and no session begins.
// It is called once, before Close.
func (s *Server) Drain(patience time.Duration) {
	s.listener.Close()
	s.mu.Lock()
	s.drainEnd = time.Now().Add(patience)
	var open, welcomed []*session
	for _, sess := range s.byWorker {
		open = append(open, sess)
		if sess.welcomed { // markWelcomed tells the others
			welcomed = append(welcomed, sess)
		}
	}
	s.mu.Unlock()
	for _, sess := range welcomed {
		s.tellDrain(sess)
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for _, sess := range open {
		select {
		case <-sess.answered:
		case <-timeout.C:
			s.mu.Lock()
			left := len(s.byWorker)
			s.mu.Unlock()
			s.log.Warn("engines did not say BYE in time: their granted slots wait for their processes or for RESUME",
				zap.Int("sessions", left), zap.Duration("drain_timeout", patience))
			return
		}
	}
}

// markWelcomed records that WELCOME has left: from now on Drain sends DRAIN to the session. If
// the agent is stopping already, markWelcomed sends it.
func (s *Server) markWelcomed(sess *session) {
	s.mu.Lock()
	sess.welcomed = true
	draining := !s.drainEnd.IsZero()
	s.mu.Unlock()
	if draining {
		s.tellDrain(sess)
	}
}

// tellDrain sends DRAIN from a goroutine of its own, so that an engine that does not read
// delays no other engine.
func (s *Server) tellDrain(sess *session) {
	s.wg.Go(func() {
		left := max(time.Until(s.drainEnd), 0)
		m := proto.Drain{DeadlineMillis: uint32(left.Milliseconds()), Reason: drainReason}
		_ = sess.sched.conn.Send(proto.TypeDrain, 0, &m, nil) // the session's reader sees the end of the connection
	})
}
