package killloop

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// storers and loaders are the numbers of documents that an engine stores and loads
	// at a time.
	storers = 3
	loaders = 2
	// maxLate bounds the pause of an engine after its agent died. Other engines come
	// back earlier.
	maxLate = 100 * time.Millisecond
)

// engine is the process of an engine. It stores and loads documents with whichever
// agent runs.
type engine struct {
	orders
	notes    *noteWriter
	space    kv.NamespaceID
	stamp    uint64 // unique to this process
	requests atomic.Uint64
	stored   atomic.Uint32 // documents that this life has begun to store
	closing  sync.WaitGroup
	mover    *mover

	mu sync.Mutex
	// current is the session for new work, nil without an agent. connected is closed
	// when there is one.
	current   *session
	connected chan struct{}
}

// session is a link and everything that the engine holds through it.
type session struct {
	link
	copies sync.WaitGroup // copies that use its mappings

	// takenOver is closed when the next session has taken over.
	takenOver chan struct{}

	jobMu   sync.Mutex
	lastJob uint64
	jobs    map[uint64]chan proto.LoadJob // claimed, LOAD not received

	// The rest is guarded by engine.mu.

	agentDead bool // no work begins here
	// resumeUnanswered is true when a RESUME named slots of this session and got no answer.
	resumeUnanswered bool
	stores           map[*store]struct{}
	loads            map[*load]struct{}
	// pins are the pins that RESUMED gave back, with the number for RELEASE and the
	// count of loads that use them.
	pins map[proto.Slot]*resumedPin
}

type resumedPin struct{ index, users int }

func newEngine(o orders, out io.Writer) *engine {
	ns := namespaceOf(o.Space)
	return &engine{
		orders: o, notes: newNoteWriter(out, o.Space), space: ns.ID(),
		stamp: mix(o.Seed ^ o.Worker<<32 ^ uint64(o.Life)), connected: make(chan struct{}),
	}
}

// run is the main function of a simulated engine's process: it stores and loads documents until
// ctx ends. Then it stops its copies and disconnects. The mover is a worker process that makes
// some of the copies.
func (e *engine) run(ctx context.Context) (err error) {
	if e.mover, err = startMover(e.orders); err != nil {
		return err
	}
	var work sync.WaitGroup
	for i := range storers {
		work.Go(func() { e.storeAll(ctx, rand.New(rand.NewPCG(e.stamp, uint64(i)))) })
	}
	for i := range loaders {
		work.Go(func() { e.loadAll(ctx, rand.New(rand.NewPCG(e.stamp, uint64(storers+i)))) })
	}
	e.connect(ctx)
	work.Wait()
	e.mu.Lock()
	last := e.current
	e.mu.Unlock()
	if last != nil {
		last.close()
	}
	e.closing.Wait()
	return errors.Join(e.mover.close(), e.notes.failed())
}

// connect keeps the engine connected until ctx ends. After the death of an agent it dials the
// next one and resumes, so that the slots of copies under way stay the engine's.
func (e *engine) connect(ctx context.Context) {
	var old *session // the session with the agent that died
	for {
		l, err := dial(ctx, &e.orders, e.Space, e.Worker)
		if err != nil {
			break
		}
		s := &session{
			link: l, takenOver: make(chan struct{}), jobs: map[uint64]chan proto.LoadJob{},
			stores: map[*store]struct{}{}, loads: map[*load]struct{}{}, pins: map[proto.Slot]*resumedPin{},
		}
		go s.deliver()
		if old != nil && !e.resume(ctx, old, s) { // this agent died too
			s.close()
			continue
		}
		old = nil
		e.begin(s)
		select {
		case <-s.sched.Done():
		case <-ctx.Done():
			return
		}
		e.lose(s)
		old = s
		_ = cluster.Wait(ctx, rand.N(maxLate)) // some engines come late to the next agent
	}
	if old != nil {
		old.copies.Wait()
		old.close()
	}
}

// begin makes s the session for new work.
func (e *engine) begin(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current = s
	close(e.connected)
}

// lose records that the agent of s is dead. Copies go on.
func (e *engine) lose(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.agentDead = true
	e.current, e.connected = nil, make(chan struct{})
}

// session returns the session for new work. Without an agent it waits for one; it returns nil
// when ctx ends first.
func (e *engine) session(ctx context.Context) *session {
	for {
		e.mu.Lock()
		s, connected := e.current, e.connected
		e.mu.Unlock()
		if s != nil {
			return s
		}
		select {
		case <-connected:
		case <-ctx.Done():
			return nil
		}
	}
}

// request returns an id that the engine has not used.
func (e *engine) request() proto.RequestID { return proto.RequestID{ID: e.requests.Add(1)} }

// resume tells the agent of session s which slots the engine still uses from old, the session
// with the dead agent, and moves the kept ones to s. It returns false when the new agent died
// before its answer; the caller then asks the next agent.
func (e *engine) resume(ctx context.Context, old, s *session) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	held := e.held(old)
	asked := cluster.Now()
	kept, err := s.sched.Resume(ctx, old.welcome, held)
	var refused *proto.RefusedError
	switch {
	case errors.As(err, &refused):
		e.notes.fault(faultRefused, 1, "%v", err)
	case err != nil:
		e.mu.Lock()
		old.resumeUnanswered = true
		e.mu.Unlock()
		return false
	}
	gone, unused := e.move(old, s, kept, asked)
	s.releaseResumed(unused)
	e.notes.put(note{Kind: noteResumed, Count: uint64(len(kept.Granted)), Other: uint64(len(kept.Pinned)), Slots: gone})
	e.closing.Go(func() {
		old.copies.Wait()
		old.close()
	})
	return true
}

// held returns the slots that the engine still uses through session s, for RESUME: granted slots
// of stores, which fill them or wait for the answer to COMMIT, and pinned slots that loads read.
// A slot that several loads read is named once.
func (e *engine) held(s *session) (h proto.Held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for st := range s.stores {
		for _, c := range st.copies {
			h.Granted = append(h.Granted, c.slot)
		}
	}
	pinned := map[proto.Slot]struct{}{}
	for l := range s.loads {
		for _, slot := range l.slots {
			if _, twice := pinned[slot]; !twice && !l.dropped[slot] {
				pinned[slot] = struct{}{}
				h.Pinned = append(h.Pinned, slot)
			}
		}
	}
	return h
}

// move gives s, the session with the new agent, the slots of old, that with the dead agent, which
// RESUMED kept, and drops the others. Stores (copies into granted slots) and loads (copies out of
// pinned slots) under way go on in s. asked is when RESUME was sent. gone are the dropped granted
// slots, and unused the numbers of kept pins that no load uses any more. A pin that was dropped
// for no reason is a fault.
func (e *engine) move(old, s *session, kept proto.Held, asked int64) (gone []proto.Slot, unused []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	granted := make(map[proto.Slot]struct{}, len(kept.Granted))
	for _, slot := range kept.Granted {
		granted[slot] = struct{}{}
	}
	for st := range old.stores {
		gone = append(gone, e.moveStoreLocked(st, old, s, granted, asked)...)
	}
	for i, slot := range kept.Pinned {
		s.pins[slot] = &resumedPin{index: i}
	}
	for l := range old.loads {
		l.heldBy, l.resumed = s, true
		s.loads[l] = struct{}{}
		for _, slot := range l.slots {
			if p := s.pins[slot]; p != nil {
				p.users++
			} else if !l.dropped[slot] {
				l.dropped[slot] = true
				// After an unanswered RESUME the agent that died may have kept the pin for itself.
				if !old.resumeUnanswered {
					e.notes.fault(faultDropped, 1, "pin of %+v", slot)
				}
			}
		}
	}
	for slot, p := range s.pins {
		if p.users == 0 { // the load ended while RESUME was under way
			delete(s.pins, slot)
			unused = append(unused, p.index)
		}
	}
	close(old.takenOver)
	return gone, unused
}

// moveStoreLocked moves store st from session old, whose agent died, to s, and returns its slots
// that RESUMED did not keep. Dropping a slot is right when COMMIT or ABORT had been sent
// (st.answerOpen), or when an earlier RESUME got no answer. Otherwise it is a fault, even if
// another engine stored the block meanwhile. The caller holds e.mu.
func (e *engine) moveStoreLocked(st *store, old, s *session, kept map[proto.Slot]struct{}, asked int64) (gone []proto.Slot) {
	st.copies = slices.DeleteFunc(st.copies, func(c *slotCopy) bool {
		if _, ok := kept[c.slot]; ok {
			return false
		}
		c.dropped.Store(true)
		gone = append(gone, c.slot)
		if !st.answerOpen && !old.resumeUnanswered {
			e.notes.fault(faultDropped, 1, "grant of %+v", c.slot)
		}
		return true
	})
	if len(gone) > 0 { // the ledger learns that these slots are not ours since asked
		e.notes.put(note{Kind: noteSettle, Time: asked, Slots: gone})
	}
	st.heldBy, st.id, st.answerOpen = s, proto.RequestID{ID: proto.ResumedRequest}, false
	s.stores[st] = struct{}{}
	return gone
}

// deliver passes each LOAD to the claim that expects it, until the worker's connection ends. It
// is a goroutine of its own.
func (s *session) deliver() {
	for j := range s.worker.Loads() {
		s.jobMu.Lock()
		claimed := s.jobs[j.Job]
		delete(s.jobs, j.Job)
		s.jobMu.Unlock()
		if claimed != nil {
			claimed <- j
		}
	}
}

// expect returns the number of a new load, which Claim tells the agent, and the channel that
// receives the agent's LOAD with that number.
func (s *session) expect() (uint64, <-chan proto.LoadJob) {
	s.jobMu.Lock()
	defer s.jobMu.Unlock()
	s.lastJob++
	c := make(chan proto.LoadJob, 1)
	s.jobs[s.lastJob] = c
	return s.lastJob, c
}
