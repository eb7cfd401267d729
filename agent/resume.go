package agent

import (
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
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
		return refuse(proto.CodeState, "RESUME may come once in a session")
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
		granted, pinned, err = s.formers.manager.Resume(s.pool, s.id, former.Session, granted, pinned)
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
			return nil, refuse(proto.CodeRange, "RESUME %s: slot %d of extent %d generation %d comes twice, want each once",
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
		return refuse(proto.CodeNamespace, "RESUME session: %d had namespace %s, this one has %s", f.Session, f.Namespace, s.namespace)
	case f.Foreign || !identified(id) || !slices.Contains(f.Processes, id):
		return refuse(proto.CodeState, "RESUME session: process %d, started at %d, is not known to be one of session %d", id.PID, id.Start, f.Session)
	}
	return nil
}

// inherit makes the former session's processes this session's: its workers may
// still be copying, and have not connected to this agent yet.
func (s *session) inherit(f *blockmgr.Former) error {
	for _, id := range f.Processes {
		p, gone, err := s.formers.processes.find(id)
		switch {
		case gone:
			continue
		case err != nil:
			p = s.formers.processes.unwatched(id)
		}
		if err := s.admit(p); err != nil {
			p.release()
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
	if err := s.pool.AddProcess(s.id, p.id); err != nil {
		return err
	}
	if !s.watch(p) {
		return refuse(proto.CodeNotFound, "session %d has ended", s.id)
	}
	return nil
}
