package blockmgr

import (
	"errors"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// ErrNoSession: the session is not known to the pool, or has ended.
var ErrNoSession = errors.New("no such session in this pool")

// ErrSessions: the node has as many sessions as its session table holds.
var ErrSessions = storage.ErrSessions

// Process names a process so that the next agent can tell whether it still runs.
type Process = storage.Process

// session is what one session holds in the pool.
type session struct {
	// pins counts how often the session has pinned each host slot. bit marks those
	// slots in the pin words, which outlive the agent.
	pins pinCounts
	bit  uint64
	// pinned is the sum of pins and of what running lookups may yet pin.
	pinned int
	// slots counts the slots in pins, reserved those that running lookups may yet add.
	slots, reserved int
	// granted slots, and when each was granted.
	granted map[registry.Ref]time.Time
	// superseded are those of the granted slots whose block somebody else has stored, or
	// was granted another slot for; see supersedeLocked.
	superseded map[registry.Ref]struct{}
	// lastSettled is when the session last settled a granted slot, or was granted the
	// first of those that it has.
	lastSettled time.Time
}

// grant notes that the session was granted a slot at a moment.
func (s *session) grant(ref registry.Ref, now time.Time) {
	if len(s.granted) == 0 {
		s.lastSettled = now
	}
	s.granted[ref] = now
}

// settle notes that a granted slot is committed, aborted or given back. superseded is
// true when somebody else got a slot for its block.
func (s *session) settle(ref registry.Ref) (superseded bool) {
	_, superseded = s.superseded[ref]
	delete(s.granted, ref)
	delete(s.superseded, ref)
	s.lastSettled = time.Now()
	return superseded
}

// overdue is how many granted slots a session has that has settled none for
// grantTimeout.
func (s *session) overdue(now time.Time) int {
	if now.Sub(s.lastSettled) < grantTimeout {
		return 0
	}
	return len(s.granted)
}

// unreserve gives back what the candidates of a lookup have reserved.
func (s *session) unreserve(found []candidate) {
	for i := range found {
		if found[i].reserved {
			s.reserved--
		}
	}
}

// BeginSession makes the session known to the pool; without that it can
// neither pin nor be granted anything. The session and its processes are on
// record before it returns, so that the next agent waits for them. Session ids
// must be unique over the lives of all agents of the node. ErrSessions means
// that the node has too many sessions.
func (p *Pool) BeginSession(s SessionID, procs ...Process) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closing {
		return p.closedLocked()
	}
	if _, ok := p.members.sessions[s]; ok || p.members.previous[s] != nil {
		return fmt.Errorf("session %d: has begun already", s)
	}
	sess := &session{granted: map[registry.Ref]time.Time{}, superseded: map[registry.Ref]struct{}{}}
	if p.slots.Host != nil {
		bit, err := p.broker.host.Sessions().Begin(uint64(s), p.id)
		if err != nil {
			return fmt.Errorf("session %d: %w", s, err)
		}
		sess.bit = 1 << bit
		p.wakeGrowerLocked()
	}
	p.members.sessions[s] = sess
	for _, proc := range procs {
		if err := p.addProcessLocked(s, proc); err != nil {
			_, ended := p.endLocked(s, nil)
			return errors.Join(err, ended)
		}
	}
	return nil
}

// AddProcess puts one more process of a session on record.
func (p *Pool) AddProcess(s SessionID, proc Process) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.checkLocked(s); err != nil {
		return err
	}
	return p.addProcessLocked(s, proc)
}

func (p *Pool) addProcessLocked(s SessionID, proc Process) error {
	if p.slots.Host == nil {
		return nil
	}
	if err := p.broker.host.Sessions().AddProcess(uint64(s), proc); err != nil {
		return fmt.Errorf("session %d: process %d: %w", s, proc.PID, err)
	}
	return nil
}

// EndSession drops the session's pins at once. Its granted slots are freed at
// once when gone is nil; otherwise they are out of use until gone is closed,
// because a dying worker may still be copying into them. It reports whether
// anything waits for that. Ending a session that is not known does nothing.
func (p *Pool) EndSession(s SessionID, gone <-chan struct{}) (waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return false
	}
	waits, _ = p.endLocked(s, gone) // a session that is not known has nothing to end
	return waits
}

func (p *Pool) endLocked(s SessionID, gone <-chan struct{}) (waits bool, err error) {
	sess, ok := p.members.sessions[s]
	if !ok {
		return false, ErrNoSession
	}
	delete(p.members.sessions, s)
	sess.pins.each(func(ref registry.Ref, n uint32) {
		sl := p.slots.Host.Slot(ref)
		p.dropPinsLocked(sl, n)
		p.clearPinLocked(ref, sess.bit)
		p.slots.LetGo(p.slots.Host, ref, sl)
	})
	defer p.releasedLocked()
	var waiting []registry.Ref
	for ref := range sess.granted {
		if gone == nil {
			p.slots.DropGrant(ref, storage.StateFree)
			continue
		}
		p.slots.DropGrant(ref, storage.StateQuarantined)
		// Nobody else's hold is on a granted slot. This one keeps its extent, whose
		// memory the writer has mapped.
		p.slots.Host.Slot(ref).Holds++
		waiting = append(waiting, ref)
	}
	if p.slots.Host == nil {
		return false, nil
	}
	p.broker.host.Sessions().ReleasePins(uint64(s))
	if _, heir := p.members.tornHolders[s]; gone == nil || len(waiting) == 0 && !heir {
		p.goneLocked(s)
		return false, nil
	}
	p.members.exiting++
	if !p.stopped() {
		p.life.workers.Go(func() { p.freeWhenGone(s, waiting, gone) })
	}
	return true, nil
}

// goneLocked takes note of it that no process of a session that has ended can
// touch a slot any more.
func (p *Pool) goneLocked(s SessionID) {
	delete(p.members.tornHolders, s)
	p.freeOrphansLocked()
	p.broker.host.Sessions().End(uint64(s))
}

// endSessions ends all sessions, as their last call would.
func (p *Pool) endSessions() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.members.sessions {
		_, _ = p.endLocked(s, nil) // it is there
	}
}

// freeWhenGone frees quarantined slots when nobody can write into them any
// more. A pool that closes first leaves them to the next agent, whose session
// table still names the processes.
func (p *Pool) freeWhenGone(s SessionID, refs []registry.Ref, gone <-chan struct{}) {
	select {
	case <-gone:
	case <-p.life.stop:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range refs {
		p.slots.Free(p.slots.Host, ref)
	}
	p.members.exiting--
	p.goneLocked(s)
	p.releasedLocked()
}

// Unpin gives back one pin of each of the slots. Slots that the session does
// not have pinned are skipped; the error, ErrBadSlot, names the first one.
func (p *Pool) Unpin(s SessionID, slots []Slot) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return err
	}
	var bad error
	for _, name := range slots {
		ref, ok := p.findLocked(name)
		if !ok || sess.pins.of(ref) == 0 {
			if bad == nil {
				bad = fmt.Errorf("unpin slot %d/%d generation %d: %w", name.Extent, name.Index, name.Generation, ErrBadSlot)
			}
			continue
		}
		sess.pinned--
		p.unpinLocked(sess, ref, p.slots.Host.Slot(ref))
	}
	return bad
}

// findLocked finds the host slot that a caller named.
func (p *Pool) findLocked(name Slot) (registry.Ref, bool) {
	if p.slots.Host == nil {
		return registry.NoRef, false
	}
	return p.slots.Host.Lookup(name)
}

// grantedLocked checks that the session was granted every one of the slots and
// names none twice, and returns them.
func (p *Pool) grantedLocked(sess *session, slots []Slot) ([]registry.Ref, error) {
	refs := make([]registry.Ref, 0, len(slots))
	seen := make(map[registry.Ref]struct{}, len(slots))
	for _, name := range slots {
		ref, ok := p.findLocked(name)
		if ok {
			_, ok = sess.granted[ref]
			// A slot without a block is a MutableBlock's, or late.
			_, late := sess.superseded[ref]
			ok = ok && (late || p.slots.Host.Slot(ref).Entry != registry.None)
		}
		_, twice := seen[ref]
		if !ok || twice {
			return nil, fmt.Errorf("slot %d/%d generation %d: %w", name.Extent, name.Index, name.Generation, ErrBadSlot)
		}
		seen[ref] = struct{}{}
		refs = append(refs, ref)
	}
	return refs, nil
}
