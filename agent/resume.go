package agent

import (
	"errors"
	"maps"
	"slices"

	"go.uber.org/zap"

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
	id := s.engine.id
	switch {
	case f.Namespace != s.namespace:
		return refusal.New(proto.CodeNamespace, "RESUME session: %d had namespace %s, this one has %s", f.Session, f.Namespace, s.namespace)
	case f.Foreign || !identified(id) || !slices.Contains(f.Processes, id):
		return refusal.New(proto.CodeState, "RESUME session: %s, started at %d, is not known to be one of session %d", processName(id.PID), id.Start, f.Session)
	}
	return nil
}

// inherit makes the former session's processes this session's: its workers may
// still be copying, and have not connected to this agent yet. When there are too
// many of them none is taken.
func (s *session) inherit(f *blockmgr.Former) error {
	var alive []*process
	for _, id := range f.Processes {
		p, gone, err := s.formers.processes.find(id)
		switch {
		case gone:
			continue
		case err != nil:
			p = s.formers.processes.unwatched(id)
		}
		alive = append(alive, p)
	}
	if err := s.enlist(alive...); err != nil {
		releaseAll(alive)
		return err
	}
	for i, p := range alive {
		if err := s.record(p); err != nil { // the session or the agent ends
			releaseAll(alive[i:])
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
func (s *session) admit(p *process) error {
	if err := s.enlist(p); err != nil {
		return err
	}
	return s.record(p)
}

// enlist counts processes among those that the session has had, all of them or,
// when there is no room for all, none.
func (s *session) enlist(procs ...*process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := make(map[blockmgr.Process]struct{})
	for _, p := range procs {
		if _, ok := s.enlisted[p.id]; !ok {
			fresh[p.id] = struct{}{}
		}
	}
	if n := len(s.enlisted) + len(fresh); n > storage.MaxSessionProcesses {
		return refusal.New(proto.CodeLimit, "session %d: %d processes, those that have exited included: want at most %d", s.id, n, storage.MaxSessionProcesses)
	}
	maps.Copy(s.enlisted, fresh)
	return nil
}

// record puts an enlisted process on record. It takes p over unless it fails.
func (s *session) record(p *process) error {
	if err := s.pool.AddProcess(s.id, p.id); err != nil {
		return err
	}
	if !s.watch(p) {
		return errEnded
	}
	return nil
}
