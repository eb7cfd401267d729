package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// The wait before the agent is dialled again doubles from minRedial to
// maxRedial; dialTime bounds one try.
const (
	minRedial = 50 * time.Millisecond
	maxRedial = 2 * time.Second
	dialTime  = 5 * time.Second
)

// session keeps the engine connected to its agent, one link after the other. It is the
// remote of the scheduler.
type session struct {
	opts   *Options
	client proto.ClientOptions
	dev    device
	talks  atomic.Int64 // conversations that have not ended
	limit  int64
	log    *zap.Logger
	ctr    *counters

	engine  atomic.Pointer[core] // nil while the engine starts
	current atomic.Pointer[liveLink]
	tried   chan struct{} // closed after the first dial, successful or not
}

// liveLink is a link with the agent's limits.
type liveLink struct {
	*link
	welcome proto.Welcome
	limit   int64 // open requests
	enabled bool  // the agent has a tier to store into
}

var _ remote = (*session)(nil)

// newSession returns the session of an engine with the agent at o.AgentSocket. hello is what the
// engine says at each connection, d its device memory. The caller starts run.
func newSession(o *Options, hello proto.Hello, d device, log *zap.Logger, ctr *counters) *session {
	s := &session{
		opts:   o,
		client: proto.ClientOptions{Socket: o.AgentSocket, Hello: hello, Log: log},
		dev:    d,
		limit:  2 * int64(o.MaxSeqs),
		log:    log,
		ctr:    ctr,
		tried:  make(chan struct{}),
	}
	s.client.Cached = s.cached
	return s
}

// open implements remote. It returns nil, and the request runs without the agent, while no agent
// is connected, when the agent has no tier, and when its limit of open requests is reached.
func (s *session) open(a attempt) conversation {
	l := s.current.Load()
	if l != nil && !l.enabled {
		return nil // no tier: nothing to find or store
	}
	if l == nil || s.talks.Load() >= min(s.limit, l.limit) {
		s.ctr.add(&s.ctr.Unconnected, 1)
		return nil
	}
	s.talks.Add(1)
	ended := a.ended
	a.ended = func() {
		s.talks.Add(-1)
		ended()
	}
	return newTalk(l.link, a)
}

// run keeps the engine connected until ctx ends: it dials the agent, with growing pauses after
// failures, and serves the link. After the agent's death it tells the next agent which slots
// copies still use.
func (s *session) run(ctx context.Context) {
	pauses := backoff.Doubling(minRedial, maxRedial)
	redial := pauses.NextBackOff()
	tried := sync.OnceFunc(func() { close(s.tried) })
	defer tried()
	var lost *liveLink // to the agent that died, with its grants and pins
	defer func() {
		if lost != nil {
			lost.close()
		}
	}()
	for ctx.Err() == nil {
		l, err := s.dial(ctx)
		if err == nil && lost != nil {
			if lost, err = s.resume(ctx, lost, l); err != nil {
				l.close()
			}
		}
		if err == nil {
			pauses.Reset()
			redial = pauses.NextBackOff()
			s.current.Store(l)
			tried()
			lost = s.serve(ctx, l)
		} else if ctx.Err() == nil {
			tried()
			s.ctr.add(&s.ctr.DialsFailed, 1)
			s.log.Warn("no agent", zap.Error(err), zap.Duration("next_try", redial))
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
		}
		redial = pauses.NextBackOff()
	}
}

// serve lets the engine use the link l until l or ctx ends, and reports statistics over it. It
// returns l, not closed, when the agent died: then the next agent takes over its slots.
func (s *session) serve(ctx context.Context, l *liveLink) (lost *liveLink) {
	s.ctr.add(&s.ctr.Sessions, 1)
	s.log.Info("connected to the agent", zap.String("socket", s.client.Socket))
	reporting, stop := context.WithCancel(ctx)
	var reporter sync.WaitGroup
	reporter.Go(func() { s.report(reporting, l) })
	patience := l.serve(ctx)
	stop()
	reporter.Wait()
	s.current.Store(nil)
	hangUp := hangUpTime
	if patience > 0 {
		l.drain(ctx, patience-patience/4) // leaves time for BYE
		hangUp = 0
	}
	s.log.Info("session with the agent has ended", zap.String("socket", s.client.Socket), zap.Bool("drained", patience > 0))
	if ctx.Err() == nil && l.agentGone(hangUp) {
		l.lose()
		return l
	}
	l.close()
	return nil
}

// dial opens both connections of a session with the agent, as scheduler and as worker. The error
// is also that the agent's geometry differs from the engine's.
func (s *session) dial(ctx context.Context) (*liveLink, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	sched, err := proto.DialScheduler(ctx, s.client)
	if err != nil {
		return nil, err
	}
	w := sched.Welcome()
	if err := s.check(&w); err != nil {
		_ = sched.Close()
		return nil, err
	}
	o := s.client
	o.Hello.Session = w.Session
	o.Hello.EventsEndpoint, o.Hello.ReplayEndpoint, o.Hello.EventsTopic = "", "", "" // the scheduler's only
	worker, err := proto.DialWorker(ctx, o, proto.Register{DeviceBlocks: uint32(s.opts.DeviceBlocks), BlockBytes: w.BlockBytes})
	if err != nil {
		_ = sched.Close()
		return nil, err
	}
	return &liveLink{
		link:    newLink(s.opts, sched, worker, s.dev, s.ctr),
		welcome: w,
		limit:   int64(w.MaxRequests),
		enabled: w.HostEnabled,
	}, nil
}

// minorOfGroups is the first minor version of the protocol with KV groups. An earlier agent would
// keep the blocks of all groups under one name.
const minorOfGroups = 4

// check returns an error when the agent's namespace or block size, in its WELCOME, is not the
// engine's, or when the agent does not know the model's KV groups.
func (s *session) check(w *proto.Welcome) error {
	ns := s.client.Hello.Namespace
	if id := ns.ID(); !bytes.Equal(w.NamespaceID, id[:]) {
		return fmt.Errorf("agent's namespace id %x: want %s", w.NamespaceID, id)
	}
	if w.BlockBytes != ns.BlockBytes() {
		return fmt.Errorf("agent's block size %d: want %d bytes", w.BlockBytes, ns.BlockBytes())
	}
	if len(ns.Groups) > 0 && w.Minor < minorOfGroups {
		return fmt.Errorf("agent's protocol 1.%d: a model with KV groups needs 1.%d", w.Minor, minorOfGroups)
	}
	return nil
}

// hello returns the frame with which the engine begins a session. incarnation is a number of this
// start of the engine; events and replay are the endpoints of its KV events.
func hello(o *Options, incarnation uint64, events, replay string) proto.Hello {
	return proto.Hello{
		Engine:         "blockyard sim-engine",
		Incarnation:    incarnation,
		WorkerID:       uint64(o.Worker.ID),
		DPRank:         uint32(o.Worker.Rank),
		Namespace:      o.Namespace,
		EventsEndpoint: events,
		ReplayEndpoint: replay,
		EventsTopic:    o.EventsTopic,
		DeviceBlocks:   uint64(o.DeviceBlocks),

		MaxBatchedTokens: uint64(o.MaxBatchedTokens),
	}
}

// resume tells the agent of the new link l which slots the copies of lost, the link to a dead
// agent, still use. When the copies have ended it commits or releases every slot. With an error,
// when the new agent died too, it returns lost for the next agent; otherwise lost is closed.
func (s *session) resume(ctx context.Context, lost, l *liveLink) (*liveLink, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	kept, err := l.sched.Resume(ctx, lost.welcome, lost.held())
	var refused *proto.RefusedError
	switch {
	case errors.As(err, &refused):
		s.log.Warn("the agent does not let the session go on", zap.Error(err))
	case err != nil:
		return lost, err
	default:
		lost.copies.Wait()
		s.settle(ctx, lost, l, kept)
	}
	lost.close()
	return nil, nil
}

// settle commits, aborts or releases the slots of lost that the agent of l has kept. All copies
// have ended.
func (s *session) settle(ctx context.Context, lost, l *liveLink, kept proto.Held) {
	filled, spoilt := lost.splitFilled(kept.Granted)
	id := proto.RequestID{ID: proto.ResumedRequest}
	err := errors.Join(
		l.sched.Commit(ctx, id, filled),
		l.sched.Abort(id, spoilt),
		l.sched.Release(id, 0, len(kept.Pinned)),
	)
	if err != nil {
		s.log.Warn("what the earlier agent had granted is not settled", zap.Error(err))
		return
	}
	s.ctr.add(&s.ctr.Resumes, 1)
	s.ctr.add(&s.ctr.BlocksResumed, uint64(len(filled)))
	s.log.Info("session goes on with a new agent", zap.Int("stored", len(filled)), zap.Int("aborted", len(spoilt)), zap.Int("released", len(kept.Pinned)))
}
