package blockmgr

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// Resume gives session s what it still holds of its former self: of the granted
// and pinned slots that it names, those that are returned are its own again, as
// if it had just been granted them or had looked them up, its cap of pins
// notwithstanding.
//
// The caller must name every slot that a copy of it may still touch, and nothing
// that it names is freed by the call. What cannot be returned stays out of use
// until the end of s: a slot named as granted that was pinned or the other way
// round, a pinned one whose block did not outlive the agent; and a slot whose
// record was torn until all sessions of that time have ended, where s stands for
// its former self. All else that the former session held is free.
//
// ErrNoSession: there is no such former session in the pool, or s is not one.
func (p *Pool) Resume(s, formerID SessionID, granted, pinned []Slot) (g, pn []Slot, err error) {
	if g, pn, err = p.resume(s, formerID, granted, pinned); err != nil {
		return nil, nil, err
	}
	p.members.forget(formerID)
	return g, pn, nil
}

func (p *Pool) resume(s, formerID SessionID, granted, pinned []Slot) (g, pn []Slot, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, nil, err
	}
	f := p.members.previous[formerID]
	if f == nil {
		return nil, nil, fmt.Errorf("former session %d: %w", formerID, ErrNoSession)
	}
	p.tickLocked()
	if len(p.members.torn) > 0 {
		p.members.tornHolders[s] = struct{}{}
	}
	for _, name := range granted {
		if ref, ok := p.findLocked(name); ok && p.regrantLocked(s, sess, f, ref) {
			g = append(g, name)
		}
	}
	for _, name := range pinned {
		if ref, ok := p.findLocked(name); ok && p.repinLocked(sess, f, ref) {
			pn = append(pn, name)
		}
	}
	// What is named on the wrong list is the session's too, only that it is not told.
	for _, name := range granted {
		if ref, ok := p.findLocked(name); ok && sess.pins.of(ref) == 0 {
			p.repinLocked(sess, f, ref)
		}
	}
	for _, name := range pinned {
		if ref, ok := p.findLocked(name); ok {
			p.regrantLocked(s, sess, f, ref)
		}
	}
	p.count.Resumed += uint64(len(g) + len(pn))
	p.count.ResumeRefused += uint64(len(granted) - len(g) + len(pinned) - len(pn))
	return g, pn, nil
}

// regrantLocked turns a slot that a former session was granted back into a
// granted one, and reports whether it was one. When somebody else has brought the
// block in meanwhile it is late: the copy into it goes on, and Commit frees it.
// So is one whose record names no block.
func (p *Pool) regrantLocked(s SessionID, sess *session, f *previousSession, ref registry.Ref) bool {
	if _, held := f.granted[ref]; !held {
		return false
	}
	delete(f.granted, ref)
	sess.grant(ref, time.Now())
	sl, r := p.host.slot(ref), p.host.record(ref)
	sl.holds = 0
	there := r.Length != 0 && p.hostSlotLocked(&r.Key) != registry.NoRef
	if r.Length != 0 && !there {
		block := blockOf(&r)
		p.occupyLocked(p.host, ref, &block, storage.StateGranted, s, r)
		return true
	}
	sl.session, sl.tick = s, p.clock
	p.host.setState(sl, storage.StateGranted)
	p.host.put(ref, r) // which tells the next agent that it can be resumed
	sess.superseded[ref] = struct{}{}
	return true
}

// repinLocked pins a slot for a session whose former self had it pinned, and
// reports whether the block is there to be read. The former's own hold stays
// until it is forgotten, so that its mark goes after that of the session is
// there. One pin of a slot is beyond the cap: without it the slot would be freed.
func (p *Pool) repinLocked(sess *session, f *previousSession, ref registry.Ref) bool {
	if _, held := f.pinned[ref]; !held {
		return false
	}
	if sess.pins.of(ref) > 0 && sess.pinned >= p.cfg.MaxPinsPerSession {
		return false
	}
	sl := p.host.slot(ref)
	sess.pinned++
	p.pinLocked(sess, ref, sl)
	return sl.resident()
}
