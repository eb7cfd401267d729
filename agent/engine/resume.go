package engine

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/process"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// heldAs is what RESUMED gave back, if that is what a frame names; else nil.
func (s *session) heldAs(id uint64, generation uint32) *request {
	if s.held == nil || s.held.requestName != (requestName{id, generation}) {
		return nil
	}
	return s.held
}

// resume answers RESUME: what the engine still holds of its session with an
// earlier agent, and names, becomes this session's; the rest of that session is
// free. Nothing is kept of a session that has been forgotten, or that was this
// agent's and ended with its connection.
func (s *session) resume(corr uint32, m *proto.Resume) error {
	if s.held != nil {
		return refusal.New(proto.CodeState, "RESUME may come once in a session")
	}
	granted, err := resumedSlots("granted", m.Granted)
	if err != nil {
		return err
	}
	pinned, err := resumedSlots("pinned", m.Pinned)
	if err != nil {
		return err
	}
	held := &request{requestName: requestName{id: proto.ResumedRequest}, pins: make(map[uint32]pin), grants: make(map[blockmgr.Slot]struct{})}
	former, ok := s.formers.lookup(blockmgr.SessionID(m.Session))
	if ok && m.AgentNonce != s.formers.nonce {
		if err := s.mayResume(&former); err != nil {
			return err
		}
		if err := s.inherit(&former); err != nil {
			return err
		}
		granted, pinned, err = s.pool.Resume(s.id, former.Session, granted, pinned)
		if errors.Is(err, blockmgr.ErrNoSession) {
			granted, pinned, err = nil, nil, nil // it was forgotten just now
		}
		if err != nil {
			return err
		}
		s.formers.took(s, granted, pinned)
	} else {
		granted, pinned = nil, nil
	}
	s.hold(held, granted, pinned)
	answer := proto.Resumed{Granted: packSlots(granted), Pinned: packSlots(pinned)}
	return s.sched.send(proto.TypeResumed, corr, &answer, slices.Concat(granted, pinned))
}

// resumedSlots reads a list of RESUME, in which no slot comes twice.
func resumedSlots(field string, packed []byte) ([]blockmgr.Slot, error) {
	slots, err := unpackSlots(packed)
	if err != nil {
		return nil, err
	}
	seen := make(map[blockmgr.Slot]struct{}, len(slots))
	for _, slot := range slots {
		if _, twice := seen[slot]; twice {
			return nil, refusal.New(proto.CodeRange, "RESUME %s: slot %d of extent %d generation %d comes twice, want each once",
				field, slot.Index, slot.Extent, slot.Generation)
		}
		seen[slot] = struct{}{}
	}
	return slots, nil
}

// mayResume checks that the session's engine is the former session's: the same
// process, and blocks of the same namespace.
func (s *session) mayResume(f *blockmgr.Former) error {
	id := s.engine.ID
	switch {
	case f.Namespace != s.namespace:
		return refusal.New(proto.CodeNamespace, "RESUME session: %d had namespace %s, this one has %s", f.Session, f.Namespace, s.namespace)
	case f.Foreign || !process.Identified(id) || !slices.Contains(f.Processes, id):
		return refusal.New(proto.CodeState, "RESUME session: %s, started at %d, is not known to be one of session %d", process.Name(id.PID), id.Start, f.Session)
	}
	return nil
}

// inherit makes the former session's processes this session's: its workers may
// still be copying, and have not connected to this agent yet. When there are too
// many of them none is taken.
func (s *session) inherit(f *blockmgr.Former) error {
	var alive []*process.Process
	for _, id := range f.Processes {
		p, gone, err := s.formers.processes.Find(id)
		switch {
		case gone:
			continue
		case err != nil:
			p = s.formers.processes.Unwatched(id)
		}
		alive = append(alive, p)
	}
	if err := s.enlist(alive...); err != nil {
		process.ReleaseAll(alive)
		return err
	}
	for i, p := range alive {
		if err := s.record(p); err != nil { // the session or the agent ends
			process.ReleaseAll(alive[i:])
			return err
		}
	}
	return nil
}

// hold notes what RESUMED names as the session's.
func (s *session) hold(held *request, granted, pinned []blockmgr.Slot) {
	s.held = held
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range granted {
		held.grants[slot] = struct{}{}
	}
	s.grants += len(granted)
	for i, slot := range pinned {
		held.pins[uint32(i)] = pin{slot: slot}
	}
}

// took counts a session that came back.
func (f *formerSessions) took(s *session, granted, pinned []blockmgr.Slot) {
	f.resumed.Add(1)
	f.grants.Add(uint64(len(granted)))
	f.pins.Add(uint64(len(pinned)))
	s.log.Info("session resumed", zap.Int("granted", len(granted)), zap.Int("pinned", len(pinned)))
}

// admit puts a process on record as one of the session's, here and for the next
// agent, which waits for all that were ever there. It takes p over unless it
// fails.
func (s *session) admit(p *process.Process) error {
	if err := s.enlist(p); err != nil {
		return err
	}
	return s.record(p)
}

// enlist counts processes among those that the session has had, all of them or,
// when there is no room for all, none.
func (s *session) enlist(procs ...*process.Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := make(map[blockmgr.Process]struct{})
	for _, p := range procs {
		if _, ok := s.enlisted[p.ID]; !ok {
			fresh[p.ID] = struct{}{}
		}
	}
	if n := len(s.enlisted) + len(fresh); n > storage.MaxSessionProcesses {
		return refusal.New(proto.CodeLimit, "session %d: %d processes, those that have exited included: want at most %d", s.id, n, storage.MaxSessionProcesses)
	}
	maps.Copy(s.enlisted, fresh)
	return nil
}

// record puts an enlisted process on record. It takes p over unless it fails.
func (s *session) record(p *process.Process) error {
	if err := s.pool.AddProcess(s.id, p.ID); err != nil {
		return err
	}
	if !s.watch(p) {
		return errEnded
	}
	return nil
}

// formerSessions are the sessions that an earlier agent of this node had when it
// died. What they hold stays out of use until all their processes have exited, or
// their engine comes back and says with RESUME what it still uses.
type formerSessions struct {
	manager   *blockmgr.Manager
	processes *process.Table
	nonce     uint64 // this agent's: a session of its own life is not a former one
	log       *zap.Logger
	stopping  <-chan struct{}
	wg        sync.WaitGroup // waits for processes to end

	resumed, grants, pins atomic.Uint64

	mu sync.Mutex
	// stuck are the sessions whose processes nobody can watch. One that holds
	// nothing ends when its pool is opened, any other with the host tier.
	stuck map[blockmgr.SessionID]struct{}
}

func newFormerSessions(m *blockmgr.Manager, t *process.Table, nonce uint64, stopping <-chan struct{}, log *zap.Logger) *formerSessions {
	return &formerSessions{
		manager: m, processes: t, nonce: nonce, stopping: stopping, log: log,
		stuck: make(map[blockmgr.SessionID]struct{}),
	}
}

// watch waits, in the background, for the processes of every former session.
func (f *formerSessions) watch() {
	for _, former := range f.manager.Former() {
		procs, ok := f.find(former)
		if !ok {
			f.mu.Lock()
			f.stuck[former.Session] = struct{}{}
			f.mu.Unlock()
			continue
		}
		f.wg.Go(func() {
			defer process.ReleaseAll(procs)
			if !process.AllExited(procs, f.stopping) {
				return
			}
			if _, waiting := f.lookup(former.Session); waiting { // it has not resumed
				f.manager.Forget(former.Session)
				f.log.Info("all processes of a former session are gone", zap.Uint64("session", uint64(former.Session)))
			}
		})
	}
}

// find watches those processes of a former session that live. It is false when
// that of one cannot be told; the others are not watched then.
func (f *formerSessions) find(former blockmgr.Former) (procs []*process.Process, ok bool) {
	log := f.log.With(zap.Uint64("session", uint64(former.Session)))
	if former.Foreign {
		log.Warn("a former session's processes are in another pid namespace: what it holds stays out of use until the host tier is discarded or the machine restarts")
		return nil, false
	}
	for _, id := range former.Processes {
		p, gone, err := f.processes.Find(id)
		if err != nil {
			log.Warn("a former session's process cannot be watched: what it holds stays out of use until the host tier is discarded or the machine restarts", zap.Error(err))
			process.ReleaseAll(procs)
			return nil, false
		}
		if !gone {
			procs = append(procs, p)
		}
	}
	return procs, true
}

// settle ends the former sessions that hold nothing in a pool that has been
// opened: there is nothing to wait for.
func (f *formerSessions) settle(p *blockmgr.Pool) {
	for _, s := range f.manager.ForgetIdle(p) {
		f.log.Info("a former session holds nothing", zap.Uint64("session", uint64(s)))
	}
}

// lookup finds a former session that has not been forgotten.
func (f *formerSessions) lookup(id blockmgr.SessionID) (blockmgr.Former, bool) {
	for _, former := range f.manager.Former() {
		if former.Session == id {
			return former, true
		}
	}
	return blockmgr.Former{}, false
}

// stats counts the former sessions that are still waited for, and those of them
// that nobody can watch.
func (f *formerSessions) stats() (waiting, stuck int) {
	left := f.manager.Former()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, former := range left {
		if _, ok := f.stuck[former.Session]; ok {
			stuck++
		}
	}
	return len(left), stuck
}
