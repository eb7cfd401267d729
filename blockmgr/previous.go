package blockmgr

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// PreviousSession is a session of an earlier agent of this node. Its granted and pinned slots
// stay out of use until Forget or Pool.Resume, because its processes may still be copying.
type PreviousSession struct {
	Session   SessionID
	Namespace kv.NamespaceID
	Processes []Process
	// Foreign: the processes were recorded in another pid namespace. Their pids cannot be
	// found here.
	Foreign bool
}

// previousHolds are the slots that a previous session holds in a pool.
type previousHolds struct {
	// bit marks the session's pins in the pin words; 0 for a session without pins.
	bit uint64
	// granted slots are quarantined, and their records name the session. pinned slots have
	// one hold each.
	granted map[registry.Ref]struct{}
	pinned  map[registry.Ref]struct{}
}

// Previous lists the sessions of earlier agents that were neither forgotten nor resumed
// yet, in order of their ids.
func (m *Manager) Previous() []PreviousSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]PreviousSession, 0, len(m.previous))
	for _, r := range m.previous {
		list = append(list, PreviousSession{SessionID(r.Session), r.Namespace, slices.Clone(r.Processes), r.Foreign})
	}
	slices.SortFunc(list, func(a, b PreviousSession) int { return cmp.Compare(a.Session, b.Session) })
	return list
}

// Forget frees the slots of a previous session. The caller knows that all of its processes are
// gone. Forget ignores an unknown session.
func (m *Manager) Forget(s SessionID) {
	r, pool := m.takePrevious(s)
	if r == nil {
		return
	}
	if pool != nil {
		pool.forget(s)
	}
	m.broker.host.Sessions().End(uint64(s))
}

// ForgetIdle forgets the previous sessions of the pool's namespace that hold no slot, and
// returns them. It forgets none while the pool has torn slots, which may belong to any previous
// session.
func (m *Manager) ForgetIdle(p *Pool) []SessionID {
	idle := p.idlePrevious()
	for _, s := range idle {
		m.Forget(s)
	}
	return idle
}

// idlePrevious returns the previous sessions that hold no slot, none while there are slots whose
// owners nobody knows.
func (p *Pool) idlePrevious() (idle []SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.members.tornSlots) > 0 {
		return nil
	}
	for s, holds := range p.members.previous {
		if len(holds.granted)+len(holds.pinned) == 0 {
			idle = append(idle, s)
		}
	}
	return idle
}

// takePrevious removes a previous session from m.previous and returns its record, nil for an
// unknown session. pool is the open pool of its namespace, nil when there is none.
func (m *Manager) takePrevious(s SessionID) (r *storage.SessionRecord, pool *Pool) {
	m.mu.Lock()
	r = m.previous[s]
	delete(m.previous, s)
	var entry *poolEntry
	if r != nil {
		entry = m.entries[r.Namespace]
	}
	m.mu.Unlock()
	if entry == nil {
		return r, nil
	}
	// A pool that is being opened may have read the session from m.previous: wait for the pool.
	entry.transition.Lock()
	defer entry.transition.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return r, entry.pool
}

// previousOf returns the previous sessions of a namespace, without the slots that they hold: the
// recovery of the host extents adds these.
func (m *Manager) previousOf(ns kv.NamespaceID) map[SessionID]*previousHolds {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[SessionID]*previousHolds{}
	for id, r := range m.previous {
		if r.Namespace != ns {
			continue
		}
		holds := &previousHolds{granted: map[registry.Ref]struct{}{}, pinned: map[registry.Ref]struct{}{}}
		if r.PinBit != storage.NoPinBit {
			holds.bit = 1 << r.PinBit
		}
		found[id] = holds
	}
	return found
}

// forget frees the slots that a previous session holds in the pool.
func (p *Pool) forget(s SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.life.closed {
		p.forgetLocked(s)
	}
}

// forgetLocked frees the slots that a previous session holds, if it holds any. It clears the
// session's pins in the slot table too, so that the next agent does not find them.
func (p *Pool) forgetLocked(s SessionID) {
	holds := p.members.previous[s]
	if holds == nil {
		return
	}
	delete(p.members.previous, s)
	for ref := range holds.granted {
		p.slots.Free(p.slots.Host, ref)
	}
	for ref := range holds.pinned {
		p.clearPinLocked(ref, holds.bit)
		p.slots.Release(p.slots.Host, ref)
	}
	p.freeTornLocked()
	p.releasedLocked()
}

// freeTornLocked frees the torn slots, once no session is left that may use one. The death of the
// previous agent damaged their records, so that nobody knows which of its sessions has them.
func (p *Pool) freeTornLocked() {
	if len(p.members.previous)+len(p.members.tornHolders) > 0 {
		return
	}
	for _, ref := range p.members.tornSlots {
		p.slots.Free(p.slots.Host, ref)
	}
	p.members.tornSlots = nil
}

// Resume gives session s the slots that a previous session of the same engine held. Of
// the granted and pinned slots that the caller names, the returned ones are granted to s
// and pinned by s. The cap of pins does not apply.
//
// The caller must name every slot that a copy may still touch. Resume frees none of them. Some
// named slots cannot be returned: a granted slot on the list of pinned ones or the reverse, and
// a pinned slot without its block. They stay out of use until s ends. A torn slot stays out of
// use until all sessions that may use it have ended, s included. Resume frees all other slots
// of the previous session.
//
// ErrNoSession: the pool has no such previous session, or no session s.
func (p *Pool) Resume(s, previous SessionID, granted, pinned []Slot) (regranted, repinned []Slot, err error) {
	if regranted, repinned, err = p.resume(s, previous, granted, pinned); err != nil {
		return nil, nil, err
	}
	p.members.forget(previous) // frees the slots that the caller did not name
	return regranted, repinned, nil
}

// resume grants and pins the named slots of a previous session for session s, and returns those that
// s has got. The caller then forgets the previous session, which frees its other slots.
func (p *Pool) resume(s, previous SessionID, granted, pinned []Slot) (regranted, repinned []Slot, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, nil, err
	}
	holds := p.members.previous[previous]
	if holds == nil {
		return nil, nil, fmt.Errorf("previous session %d: %w", previous, ErrNoSession)
	}
	p.tickLocked()
	if len(p.members.tornSlots) > 0 { // slots with damaged records, one of which s may have
		p.members.tornHolders[s] = struct{}{}
	}
	for _, name := range granted {
		if ref, ok := p.findLocked(name); ok && p.regrantLocked(s, sess, holds, ref) {
			regranted = append(regranted, name)
		}
	}
	for _, name := range pinned {
		if ref, ok := p.findLocked(name); ok && p.repinLocked(sess, holds, ref) {
			repinned = append(repinned, name)
		}
	}
	// The session gets a slot on the wrong list too, but it is not returned.
	for _, name := range granted {
		if ref, ok := p.findLocked(name); ok && sess.pins.of(ref) == 0 {
			p.repinLocked(sess, holds, ref)
		}
	}
	for _, name := range pinned {
		if ref, ok := p.findLocked(name); ok {
			p.regrantLocked(s, sess, holds, ref)
		}
	}
	p.count.Resumed += uint64(len(regranted) + len(repinned))
	p.count.ResumeRefused += uint64(len(granted) - len(regranted) + len(pinned) - len(repinned))
	return regranted, repinned, nil
}

// regrantLocked grants session s a slot, if a previous session with those holds was granted the
// slot, and reports whether it did. If another session has stored the block the slot is
// superseded: the copy into it goes on, and Commit frees it. A slot whose record names no block is
// superseded too.
func (p *Pool) regrantLocked(s SessionID, sess *session, holds *previousHolds, ref registry.Ref) bool {
	if _, held := holds.granted[ref]; !held {
		return false
	}
	delete(holds.granted, ref)
	sess.grant(ref, time.Now())
	sl, r := p.slots.Host.Slot(ref), p.slots.Host.Record(ref)
	sl.Holds = 0
	namesBlock := r.Length != 0
	if namesBlock && p.slots.HostSlot(&r.Key) == registry.NoRef {
		block := tier.BlockOf(&r)
		p.slots.Occupy(p.slots.Host, ref, &block, storage.StateGranted, s, r)
		return true
	}
	p.slots.Grant(ref, s, r) // the record tells the next agent that the slot can be resumed
	sess.superseded[ref] = struct{}{}
	return true
}

// repinLocked pins a slot for session sess, if a previous session with those holds had the slot
// pinned. It reports whether the block can be read. The previous session's hold stays until the
// session is forgotten: so the pin word gets the new mark before it loses the old one. The first
// pin of a slot may exceed the session's bound, because the slot would be freed without it.
func (p *Pool) repinLocked(sess *session, holds *previousHolds, ref registry.Ref) bool {
	if _, held := holds.pinned[ref]; !held {
		return false
	}
	if sess.pins.of(ref) > 0 && sess.pinned >= p.cfg.MaxPinsPerSession {
		return false
	}
	sl := p.slots.Host.Slot(ref)
	sess.pinned++
	p.pinLocked(sess, ref, sl)
	return sl.Resident()
}
