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

	// moved is closed when the next session has taken over.
	moved chan struct{}

	jobMu   sync.Mutex
	lastJob uint64
	jobs    map[uint64]chan proto.LoadJob // claimed, LOAD not received

	// The rest is guarded by engine.mu.

	lost bool // the agent is dead: no work begins here
	// unsure is true when a RESUME named slots of this session and got no answer.
	unsure bool
	stores map[*store]struct{}
	loads  map[*load]struct{}
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

// run stores and loads until ctx ends. It then stops its copies and disconnects.
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

// connect keeps the engine connected until ctx ends.
func (e *engine) connect(ctx context.Context) {
	var left *session // the session with the agent that died
	for {
		l, err := dial(ctx, &e.orders, e.Space, e.Worker)
		if err != nil {
			break
		}
		s := &session{
			link: l, moved: make(chan struct{}), jobs: map[uint64]chan proto.LoadJob{},
			stores: map[*store]struct{}{}, loads: map[*load]struct{}{}, pins: map[proto.Slot]*resumedPin{},
		}
		go s.deliver()
		if left != nil && !e.resume(ctx, left, s) {
			s.close()
			continue
		}
		left = nil
		e.begin(s)
		select {
		case <-s.sched.Done():
		case <-ctx.Done():
			return
		}
		e.lose(s)
		left = s
		_ = cluster.Wait(ctx, rand.N(maxLate))
	}
	if left != nil {
		left.copies.Wait()
		left.close()
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
	s.lost = true
	e.current, e.connected = nil, make(chan struct{})
}

// session waits for a session and returns it. It returns nil when ctx ends first.
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

// resume moves the slots of session left to session s. It reports false when the new
// agent died before its answer; the caller then asks the next agent.
func (e *engine) resume(ctx context.Context, left, s *session) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	held := e.held(left)
	asked := cluster.Now()
	kept, err := s.sched.Resume(ctx, left.welcome, held)
	var refused *proto.RefusedError
	switch {
	case errors.As(err, &refused):
		e.notes.fault(faultRefused, 1, "%v", err)
	case err != nil:
		e.mu.Lock()
		left.unsure = true
		e.mu.Unlock()
		return false
	}
	gone, unused := e.move(left, s, kept, asked)
	s.releaseResumed(unused)
	e.notes.put(note{Kind: noteResumed, Count: uint64(len(kept.Granted)), Other: uint64(len(kept.Pinned)), Slots: gone})
	e.closing.Go(func() {
		left.copies.Wait()
		left.close()
	})
	return true
}

// held returns the slots of a session that copies use or have filled.
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

// move gives session s the slots that RESUMED kept and drops the others. gone are the
// dropped granted slots, unused the numbers of kept pins that no load uses.
func (e *engine) move(left, s *session, kept proto.Held, asked int64) (gone []proto.Slot, unused []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	granted := make(map[proto.Slot]struct{}, len(kept.Granted))
	for _, slot := range kept.Granted {
		granted[slot] = struct{}{}
	}
	for st := range left.stores {
		gone = append(gone, e.moveStoreLocked(st, left, s, granted, asked)...)
	}
	for i, slot := range kept.Pinned {
		s.pins[slot] = &resumedPin{index: i}
	}
	for l := range left.loads {
		l.owner, l.resumed = s, true
		s.loads[l] = struct{}{}
		for _, slot := range l.slots {
			if p := s.pins[slot]; p != nil {
				p.users++
			} else if !l.dropped[slot] {
				l.dropped[slot] = true
				if !left.unsure {
					e.notes.fault(faultDropped, 1, "pin of %+v", slot)
				}
			}
		}
	}
	for slot, p := range s.pins {
		if p.users == 0 {
			delete(s.pins, slot)
			unused = append(unused, p.index)
		}
	}
	close(left.moved)
	return gone, unused
}

// moveStoreLocked drops the slots of a store that were not kept, and returns them. A
// drop is in order when COMMIT or ABORT had been sent, or when an earlier RESUME got no
// answer. It is a fault otherwise, also when another engine stored the block meanwhile.
func (e *engine) moveStoreLocked(st *store, left, s *session, kept map[proto.Slot]struct{}, asked int64) (gone []proto.Slot) {
	st.copies = slices.DeleteFunc(st.copies, func(c *slotCopy) bool {
		if _, ok := kept[c.slot]; ok {
			return false
		}
		c.dropped.Store(true)
		gone = append(gone, c.slot)
		if !st.offered && !left.unsure {
			e.notes.fault(faultDropped, 1, "grant of %+v", c.slot)
		}
		return true
	})
	if len(gone) > 0 {
		e.notes.put(note{Kind: noteSettle, Time: asked, Slots: gone})
	}
	st.owner, st.id, st.offered = s, proto.RequestID{ID: proto.ResumedRequest}, false
	s.stores[st] = struct{}{}
	return gone
}

// deliver passes each LOAD to its claim until the worker connection ends.
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

// expect returns the number of a new load and the channel that receives its LOAD.
func (s *session) expect() (uint64, <-chan proto.LoadJob) {
	s.jobMu.Lock()
	defer s.jobMu.Unlock()
	s.lastJob++
	c := make(chan proto.LoadJob, 1)
	s.jobs[s.lastJob] = c
	return s.lastJob, c
}
