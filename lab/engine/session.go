package engine

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// The wait before the agent is dialled again doubles from minRedial to
// maxRedial; dialTime bounds one try.
const (
	minRedial = 50 * time.Millisecond
	maxRedial = 2 * time.Second
	dialTime  = 5 * time.Second
)

// session keeps the engine connected to its agent: one link at a time, a new
// one when it ends. It is the remote of the scheduler.
type session struct {
	client proto.ClientOptions
	dev    device
	blocks int // device blocks
	wait   time.Duration
	talks  atomic.Int64 // conversations that are not over
	limit  int64
	log    *zap.Logger
	ctr    *counters

	engine  atomic.Pointer[core] // nil while the engine starts
	current atomic.Pointer[liveLink]
	tried   chan struct{} // closed after the first dial, whatever came of it
}

// liveLink is a link with what the agent said about it.
type liveLink struct {
	*link
	welcome proto.Welcome
	limit   int64 // open requests
	enabled bool  // it has a tier to store into
}

var _ remote = (*session)(nil)

func newSession(o *Options, hello proto.Hello, d device, log *zap.Logger, ctr *counters) *session {
	s := &session{
		client: proto.ClientOptions{Socket: o.AgentSocket, Hello: hello, Log: log},
		dev:    d,
		blocks: o.DeviceBlocks,
		wait:   o.LookupWait,
		limit:  2 * int64(o.MaxSeqs),
		log:    log,
		ctr:    ctr,
		tried:  make(chan struct{}),
	}
	s.client.Cached = s.cached
	return s
}

// open implements remote.
func (s *session) open(a attempt) conversation {
	l := s.current.Load()
	if l != nil && !l.enabled {
		return nil // nothing to find there, and nowhere to store
	}
	if l == nil || s.talks.Load() >= min(s.limit, l.limit) {
		s.ctr.unconnected.Add(1)
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

// run dials, serves, and dials again, until ctx ends.
func (s *session) run(ctx context.Context) {
	redial := minRedial
	tried := sync.OnceFunc(func() { close(s.tried) })
	defer tried()
	var left *liveLink // of an agent that has died, with what it had granted and pinned
	defer func() {
		if left != nil {
			left.close()
		}
	}()
	for ctx.Err() == nil {
		l, err := s.dial(ctx)
		if err == nil && left != nil {
			if left, err = s.resume(ctx, left, l); err != nil {
				l.close()
			}
		}
		if err == nil {
			redial = minRedial
			s.current.Store(l)
			tried()
			left = s.serve(ctx, l)
		} else if ctx.Err() == nil {
			tried()
			s.ctr.dialsFailed.Add(1)
			s.log.Warn("no agent", zap.Error(err), zap.Duration("next_try", redial))
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
		}
		redial = min(2*redial, maxRedial)
	}
}

// serve keeps l until it or ctx ends. It returns l when the agent is gone: what l
// holds is then the next agent's to give back.
func (s *session) serve(ctx context.Context, l *liveLink) (left *liveLink) {
	s.ctr.sessions.Add(1)
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
		l.drain(ctx, patience-patience/4) // the rest is for BYE
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

// dial opens both connections of a session.
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
	o.Hello.EventsEndpoint, o.Hello.ReplayEndpoint, o.Hello.EventsTopic = "", "", ""
	worker, err := proto.DialWorker(ctx, o, proto.Register{DeviceBlocks: uint32(s.blocks), BlockBytes: w.BlockBytes})
	if err != nil {
		_ = sched.Close()
		return nil, err
	}
	return &liveLink{
		link:    newLink(sched, worker, s.dev, s.wait, s.ctr),
		welcome: w,
		limit:   int64(w.MaxRequests),
		enabled: w.HostEnabled,
	}, nil
}

// check compares what the agent made of our namespace with what we know.
func (s *session) check(w *proto.Welcome) error {
	ns := s.client.Hello.Namespace
	if id := ns.ID(); !bytes.Equal(w.NamespaceID, id[:]) {
		return fmt.Errorf("agent's namespace id %x: want %s", w.NamespaceID, id)
	}
	if w.BlockBytes != ns.BlockBytes() {
		return fmt.Errorf("agent's block size %d: want %d bytes", w.BlockBytes, ns.BlockBytes())
	}
	return nil
}

// hello is what an engine says about itself.
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
