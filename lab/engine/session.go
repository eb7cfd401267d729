package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	client proto.ClientOptions
	dev    device
	blocks int // device blocks
	wait   time.Duration
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

// run dials and serves links until ctx ends.
func (s *session) run(ctx context.Context) {
	pauses := backoff.Doubling(minRedial, maxRedial)
	redial := pauses.NextBackOff()
	tried := sync.OnceFunc(func() { close(s.tried) })
	defer tried()
	var left *liveLink // of the agent that died, with its grants and pins
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
			pauses.Reset()
			redial = pauses.NextBackOff()
			s.current.Store(l)
			tried()
			left = s.serve(ctx, l)
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

// serve keeps l until l or ctx ends. It returns l when the agent is gone: the next
// agent takes over its slots.
func (s *session) serve(ctx context.Context, l *liveLink) (left *liveLink) {
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

// check compares the agent's answer with the engine's geometry.
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

// hello returns the HELLO of the engine.
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

// hangUpTime bounds the time between the ends of both connections when an agent dies.
// After it only the worker has lost its connection.
const hangUpTime = 100 * time.Millisecond

// agentGone reports whether the agent ended the link. It waits for at most wait.
func (l *link) agentGone(wait time.Duration) bool {
	select {
	case <-l.sched.Done():
		return true
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-l.sched.Done():
		return true
	case <-timer.C:
		return false
	}
}

// lose fails the calls that wait for the agent. No copy begins any more. Copies under
// way go on, because the next agent hears of their slots.
func (l *link) lose() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// drain begins no further copy and waits, no longer than patience, until copies under
// way have ended and the agent has their blocks.
func (l *link) drain(ctx context.Context, patience time.Duration) {
	l.mu.Lock()
	l.lost = true
	done := make(chan struct{})
	l.settledAll = done
	l.tellSettledLocked()
	l.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-l.sched.Done():
	case <-timer.C:
	case <-ctx.Done():
	}
}

// tellSettledLocked ends the wait of drain once nothing is granted or read.
func (l *link) tellSettledLocked() {
	if l.settledAll != nil && len(l.granted)+len(l.loading) == 0 {
		close(l.settledAll)
		l.settledAll = nil
	}
}

// beginStore records granted slots that will be written; endStore follows. It reports
// false when the link is lost: the next agent does not hear of these slots.
func (l *link) beginStore(slots []proto.Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return false
	}
	for _, s := range slots {
		l.granted[s] = false
	}
	l.copies.Add(1)
	return true
}

// endStore records that the slots are not written any more. They stay granted until
// settled.
func (l *link) endStore(slots []proto.Slot, whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		l.granted[s] = whole
	}
	l.copies.Done()
}

// settled removes slots that were committed or aborted.
func (l *link) settled(slots []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		delete(l.granted, s)
	}
	l.tellSettledLocked()
}

// beginLoad records pinned slots that will be read; endLoad follows. It reports false
// when the link is lost.
func (l *link) beginLoad(slots []proto.Slot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return false
	}
	for _, s := range slots {
		l.loading[s]++
	}
	l.copies.Add(1)
	return true
}

func (l *link) endLoad(slots []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if l.loading[s]--; l.loading[s] == 0 {
			delete(l.loading, s)
		}
	}
	l.copies.Done()
	l.tellSettledLocked()
}

// held returns the slots of a lost link that copies use or have filled. When RESUME
// cannot name all of them it waits for the copies and leaves some out.
func (l *link) held() proto.Held {
	if h := l.heldNow(); len(h.Granted)+len(h.Pinned) <= proto.MaxResumeSlots {
		return h
	}
	l.copies.Wait()
	h := l.heldNow()
	h.Granted = h.Granted[:min(len(h.Granted), proto.MaxResumeSlots)]
	return h
}

func (l *link) heldNow() proto.Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return proto.Held{Granted: slices.Collect(maps.Keys(l.granted)), Pinned: slices.Collect(maps.Keys(l.loading))}
}

// sort separates slots that have their block from slots whose copy failed.
func (l *link) sort(slots []proto.Slot) (filled, spoilt []proto.Slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range slots {
		if l.granted[s] {
			filled = append(filled, s)
		} else {
			spoilt = append(spoilt, s)
		}
	}
	return filled, spoilt
}

// resume tells the agent of l about the slots that copies of left, a link with a dead
// agent, still use. When the copies have ended it commits or releases every slot. It
// returns left with the error when the new agent died too.
func (s *session) resume(ctx context.Context, left, l *liveLink) (*liveLink, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	kept, err := l.sched.Resume(ctx, left.welcome, left.held())
	var refused *proto.RefusedError
	switch {
	case errors.As(err, &refused):
		s.log.Warn("the agent does not let the session go on", zap.Error(err))
	case err != nil:
		return left, err
	default:
		left.copies.Wait()
		s.settle(ctx, left, l, kept)
	}
	left.close()
	return nil, nil
}

// settle commits or releases the kept slots of a lost link, whose copies have ended.
func (s *session) settle(ctx context.Context, left, l *liveLink, kept proto.Held) {
	filled, spoilt := left.sort(kept.Granted)
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
