package blockmgr

import (
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// ErrNoSession: the session is not known to the pool, or has ended.
var ErrNoSession = errors.New("no such session in this pool")

// BeginSession makes the session known to the pool; without that it can
// neither pin nor be granted anything.
func (p *Pool) BeginSession(s SessionID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return ErrClosed
	}
	if _, ok := p.sessions[s]; ok {
		return fmt.Errorf("session %d: has begun already", s)
	}
	p.sessions[s] = &session{pins: map[uint32]uint32{}, granted: map[uint32]struct{}{}}
	return nil
}

// EndSession drops the session's pins at once. Its granted slots are freed at
// once when gone is nil; otherwise they are out of use until gone is closed,
// because a dying worker may still be copying into them. Ending a session that
// is not known does nothing.
func (p *Pool) EndSession(s SessionID, gone <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, ok := p.sessions[s]
	if !ok || p.closed {
		return
	}
	delete(p.sessions, s)
	for ref, n := range sess.pins {
		p.host.slots[ref].pins -= n
		p.settleLocked(p.host, ref)
	}
	defer p.releasedLocked()
	var waiting []uint32
	for ref := range sess.granted {
		if gone == nil {
			p.dropLocked(p.host, ref, storage.StateFree)
			continue
		}
		p.dropLocked(p.host, ref, storage.StateQuarantined)
		// Nobody else's hold is on a granted slot. This one keeps its extent, whose
		// memory the writer has mapped.
		p.holdLocked(p.host, ref)
		waiting = append(waiting, ref)
	}
	if len(waiting) > 0 && !p.stopped() {
		p.workers.Go(func() { p.freeWhenGone(waiting, gone) })
	}
}

// freeWhenGone frees quarantined slots when nobody can write into them any
// more. A pool that closes first takes its slots with it.
func (p *Pool) freeWhenGone(refs []uint32, gone <-chan struct{}) {
	select {
	case <-gone:
	case <-p.stop:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range refs {
		p.freeLocked(p.host, ref)
	}
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
		if !ok || sess.pins[ref] == 0 {
			if bad == nil {
				bad = fmt.Errorf("unpin slot %d/%d generation %d: %w", name.Extent, name.Index, name.Generation, ErrBadSlot)
			}
			continue
		}
		if sess.pins[ref]--; sess.pins[ref] == 0 {
			delete(sess.pins, ref)
		}
		sess.pinned--
		p.host.slots[ref].pins--
		p.settleLocked(p.host, ref)
	}
	return bad
}

// findLocked finds the host slot that a caller named.
func (p *Pool) findLocked(name Slot) (uint32, bool) {
	if p.host == nil {
		return none, false
	}
	return p.host.lookup(name)
}

// grantedLocked checks that the session was granted every one of the slots and
// names none twice, and returns them.
func (p *Pool) grantedLocked(sess *session, slots []Slot) ([]uint32, error) {
	refs := make([]uint32, 0, len(slots))
	seen := make(map[uint32]struct{}, len(slots))
	for _, name := range slots {
		ref, ok := p.findLocked(name)
		if ok {
			_, ok = sess.granted[ref]
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
