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

// resumedAs returns session.resumed, which stands for the slots that RESUME kept, if a frame with
// this id and generation names it, else nil.
func (s *session) resumedAs(id uint64, generation uint32) *request {
	if s.resumed == nil || s.resumed.requestName != (requestName{id, generation}) {
		return nil
	}
	return s.resumed
}

// resume answers RESUME. Slots of the previous session that the engine names become this
// session's, its other slots are freed. The answer names no slot when this agent does not know
// the previous session, or served it itself.
func (s *session) resume(corr uint32, m *proto.Resume) error {
	if s.resumed != nil {
		return refusal.New(proto.CodeState, "RESUME came twice in a session")
	}
	granted, err := resumedSlots("granted", m.Granted)
	if err != nil {
		return err
	}
	pinned, err := resumedSlots("pinned", m.Pinned)
	if err != nil {
		return err
	}
	if granted, pinned, err = s.takePrevious(m, granted, pinned); err != nil {
		return err
	}
	s.recordResumed(granted, pinned)
	answer := proto.Resumed{Granted: packSlots(granted), Pinned: packSlots(pinned)}
	return s.sched.send(proto.TypeResumed, corr, &answer, slices.Concat(granted, pinned))
}

// takePrevious moves slots of the previous session that RESUME names in m to this session: those
// that the engine was still granted, and those that it had pinned. It returns the slots that this
// session got: none if the previous session is unknown, has ended or had this same agent.
func (s *session) takePrevious(m *proto.Resume, granted, pinned []blockmgr.Slot) (gotGranted, gotPinned []blockmgr.Slot, err error) {
	previous, ok := s.previous.lookup(blockmgr.SessionID(m.Session))
	if !ok || m.AgentNonce == s.previous.nonce { // the nonce is the agent's run
		return nil, nil, nil
	}
	if err := s.mayResume(&previous); err != nil {
		return nil, nil, err
	}
	if err := s.inherit(&previous); err != nil {
		return nil, nil, err
	}
	gotGranted, gotPinned, err = s.pool.Resume(s.id, previous.Session, granted, pinned)
	switch {
	case errors.Is(err, blockmgr.ErrNoSession): // all its processes have exited since lookup
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	s.previous.countResumed(s, gotGranted, gotPinned)
	return gotGranted, gotPinned, nil
}

// resumedSlots decodes a list of slots of RESUME. A slot that comes twice is an error.
func resumedSlots(field string, packed []byte) ([]blockmgr.Slot, error) {
	slots, err := unpackSlots(packed)
	if err != nil {
		return nil, err
	}
	seen := make(map[blockmgr.Slot]struct{}, len(slots))
	for _, slot := range slots {
		if _, twice := seen[slot]; twice {
			return nil, refusal.New(proto.CodeRange, "RESUME %s: slot %d of extent %d generation %d comes twice",
				field, slot.Index, slot.Extent, slot.Generation)
		}
		seen[slot] = struct{}{}
	}
	return slots, nil
}

// mayResume refuses a RESUME by another process or for another namespace.
func (s *session) mayResume(previous *blockmgr.PreviousSession) error {
	id := s.engine.ID
	switch {
	case previous.Namespace != s.namespace:
		return refusal.New(proto.CodeNamespace, "RESUME session: %d had namespace %s, this one has %s", previous.Session, previous.Namespace, s.namespace)
	case previous.Foreign || !process.Identified(id) || !slices.Contains(previous.Processes, id):
		return refusal.New(proto.CodeState, "RESUME session: %s, started at %d, is not on record for session %d", process.Name(id.PID), id.Start, previous.Session)
	}
	return nil
}

// inherit adds the living processes of the previous session, of an earlier agent, to this one: its
// workers may still be copying, and have not connected yet. So this session's slots also wait for
// them to exit. When there are too many processes it returns an error and adds none.
func (s *session) inherit(previous *blockmgr.PreviousSession) error {
	var alive []*process.Process
	for _, id := range previous.Processes {
		p, gone, err := s.previous.processes.Find(id)
		switch {
		case gone:
			continue
		case err != nil: // perhaps alive
			p = s.previous.processes.Unwatched(id)
		}
		alive = append(alive, p)
	}
	if err := s.enlist(alive...); err != nil { // checks the bound for all of them
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

// recordResumed records the slots that RESUME kept, in a pseudo-request. The engine names no
// blocks for pinned slots: RELEASE counts them in the order of pinned, from 0.
func (s *session) recordResumed(granted, pinned []blockmgr.Slot) {
	r := &request{requestName: requestName{id: proto.ResumedRequest}, pins: make(map[blockName]pin), grants: make(map[blockmgr.Slot]struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range granted {
		r.grants[slot] = struct{}{}
	}
	s.grants += len(granted)
	for i, slot := range pinned {
		r.pins[blockName{index: uint32(i)}] = pin{slot: slot}
	}
	s.resumed = r
}

// countResumed counts a resumed session.
func (f *previousSessions) countResumed(s *session, granted, pinned []blockmgr.Slot) {
	f.resumed.Add(1)
	f.grants.Add(uint64(len(granted)))
	f.pins.Add(uint64(len(pinned)))
	s.log.Info("session resumed", zap.Int("granted", len(granted)), zap.Int("pinned", len(pinned)))
}

// admit adds a process to the session and to the session's record. The next agent waits for
// every process on record. An error leaves p to the caller.
func (s *session) admit(p *process.Process) error {
	if err := s.enlist(p); err != nil {
		return err
	}
	return s.record(p)
}

// enlist adds procs to the processes that the session ever had, whose number is bounded because
// the block manager's record of the session has room for so many. When there are too many it
// returns a refusal and adds none.
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
		return refusal.New(proto.CodeLimit, "session %d: %d processes, exited ones included, limit %d", s.id, n, storage.MaxSessionProcesses)
	}
	maps.Copy(s.enlisted, fresh)
	return nil
}

// record writes an enlisted process to the session's record. An error leaves p to the caller.
func (s *session) record(p *process.Process) error {
	if err := s.pool.AddProcess(s.id, p.ID); err != nil {
		return err
	}
	if !s.addProcess(p) {
		return errEnded
	}
	return nil
}

// previousSessions are the sessions of an earlier agent of this node that have not resumed.
// Their slots stay out of use until all their processes have exited, or until their engine
// names with RESUME the slots that it still uses.
type previousSessions struct {
	manager   *blockmgr.Manager
	processes *process.Table
	nonce     uint64 // this agent's; RESUME of a session with this nonce keeps nothing
	log       *zap.Logger
	stopping  <-chan struct{}
	wg        sync.WaitGroup // goroutines that wait for processes

	resumed, grants, pins atomic.Uint64

	mu sync.Mutex
	// stuck are the sessions with a process that cannot be watched. A stuck session without
	// slots ends when its pool opens, any other with the host tier.
	stuck map[blockmgr.SessionID]struct{}
}

func newPreviousSessions(m *blockmgr.Manager, t *process.Table, nonce uint64, stopping <-chan struct{}, log *zap.Logger) *previousSessions {
	return &previousSessions{
		manager: m, processes: t, nonce: nonce, stopping: stopping, log: log,
		stuck: make(map[blockmgr.SessionID]struct{}),
	}
}

// watch waits in the background for the processes of every session of an earlier agent. When
// all processes of a session have exited, nobody writes to its slots any more: the block manager
// may use them.
func (f *previousSessions) watch() {
	for _, previous := range f.manager.Previous() {
		procs, ok := f.find(previous)
		if !ok {
			f.mu.Lock()
			f.stuck[previous.Session] = struct{}{}
			f.mu.Unlock()
			continue
		}
		f.wg.Go(func() {
			defer process.ReleaseAll(procs)
			if !process.AllExited(procs, f.stopping) {
				return
			}
			if _, waiting := f.lookup(previous.Session); waiting { // else it has resumed
				f.manager.Forget(previous.Session)
				f.log.Info("all processes of a previous session are gone", zap.Uint64("session", uint64(previous.Session)))
			}
		})
	}
}

// find watches the living processes of a session of an earlier agent. It returns false, and
// watches none, when it cannot tell whether one of the processes lives.
func (f *previousSessions) find(previous blockmgr.PreviousSession) (procs []*process.Process, ok bool) {
	log := f.log.With(zap.Uint64("session", uint64(previous.Session)))
	if previous.Foreign {
		log.Warn("a previous session's processes are in another pid namespace: its slots stay out of use until the host tier is discarded or the machine restarts")
		return nil, false
	}
	for _, id := range previous.Processes {
		p, gone, err := f.processes.Find(id)
		if err != nil {
			log.Warn("a previous session's process cannot be watched: its slots stay out of use until the host tier is discarded or the machine restarts", zap.Error(err))
			process.ReleaseAll(procs)
			return nil, false
		}
		if !gone {
			procs = append(procs, p)
		}
	}
	return procs, true
}

// forgetIdle ends the sessions of an earlier agent in a pool that has just opened, if they hold
// no slot of the pool.
func (f *previousSessions) forgetIdle(p *blockmgr.Pool) {
	for _, s := range f.manager.ForgetIdle(p) {
		f.log.Info("a previous session holds nothing", zap.Uint64("session", uint64(s)))
	}
}

// lookup returns a session of an earlier agent; false after it has resumed or ended.
func (f *previousSessions) lookup(id blockmgr.SessionID) (blockmgr.PreviousSession, bool) {
	for _, previous := range f.manager.Previous() {
		if previous.Session == id {
			return previous, true
		}
	}
	return blockmgr.PreviousSession{}, false
}

// stats counts the sessions of an earlier agent that have neither resumed nor ended, and those
// among them with a process that cannot be watched (stuck).
func (f *previousSessions) stats() (waiting, stuck int) {
	left := f.manager.Previous()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, previous := range left {
		if _, ok := f.stuck[previous.Session]; ok {
			stuck++
		}
	}
	return len(left), stuck
}
