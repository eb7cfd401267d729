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

// Former is a session of an earlier agent of this node. What it was granted and
// had pinned stays out of use until Forget or Pool.Resume, because its processes may
// still be copying.
type Former struct {
	Session   SessionID
	Namespace kv.NamespaceID
	Processes []Process
	// Foreign: the processes were recorded in another pid namespace, so that
	// their pids mean nothing here.
	Foreign bool
}

// former is what a former session holds in a pool.
type previousSession struct {
	bit uint64
	// granted slots are quarantined, their records say for whom; pinned ones carry
	// one hold each.
	granted map[registry.Ref]struct{}
	pinned  map[registry.Ref]struct{}
}

// Former lists the sessions of earlier agents that were neither forgotten nor
// resumed yet.
func (m *Manager) Former() []Former {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Former, 0, len(m.formers))
	for _, r := range m.formers {
		list = append(list, Former{SessionID(r.Session), r.Namespace, slices.Clone(r.Processes), r.Foreign})
	}
	slices.SortFunc(list, func(a, b Former) int { return cmp.Compare(a.Session, b.Session) })
	return list
}

// Forget says that all processes of a former session are gone: what it held is
// free. One that is not known is ignored.
func (m *Manager) Forget(s SessionID) {
	r, pool := m.takeFormer(s)
	if r == nil {
		return
	}
	if pool != nil {
		pool.forget(s)
	}
	m.broker.host.Sessions().End(uint64(s))
}

// ForgetIdle forgets the former sessions of the pool's namespace that hold nothing
// in it, and returns them: no process of theirs can touch a slot. As long as there
// are slots that may be any former session's, because their records were damaged,
// it forgets none.
func (m *Manager) ForgetIdle(p *Pool) []SessionID {
	idle := p.idleFormers()
	for _, s := range idle {
		m.Forget(s)
	}
	return idle
}

func (p *Pool) idleFormers() (idle []SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.members.torn) > 0 {
		return nil
	}
	for s, f := range p.members.previous {
		if len(f.granted)+len(f.pinned) == 0 {
			idle = append(idle, s)
		}
	}
	return idle
}

// takeFormer takes a former session off the list; pool is that of its namespace,
// nil when it is not open.
func (m *Manager) takeFormer(s SessionID) (r *storage.SessionRecord, pool *Pool) {
	m.mu.Lock()
	r = m.formers[s]
	delete(m.formers, s)
	var here *place
	if r != nil {
		here = m.places[r.Namespace]
	}
	m.mu.Unlock()
	if here == nil {
		return r, nil
	}
	// A pool that is being opened reads the list of formers.
	here.making.Lock()
	defer here.making.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return r, here.pool
}

// formersOf are the former sessions of a namespace.
func (m *Manager) formersOf(ns kv.NamespaceID) map[SessionID]*previousSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[SessionID]*previousSession{}
	for id, r := range m.formers {
		if r.Namespace != ns {
			continue
		}
		f := &previousSession{granted: map[registry.Ref]struct{}{}, pinned: map[registry.Ref]struct{}{}}
		if r.PinBit != storage.NoPinBit {
			f.bit = 1 << r.PinBit
		}
		found[id] = f
	}
	return found
}

// forget frees what a former session still holds in the pool.
func (p *Pool) forget(s SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.life.closed {
		p.forgetLocked(s)
	}
}

func (p *Pool) forgetLocked(s SessionID) {
	f := p.members.previous[s]
	if f == nil {
		return
	}
	delete(p.members.previous, s)
	for ref := range f.granted {
		p.slots.Free(p.slots.Host, ref)
	}
	for ref := range f.pinned {
		p.clearPinLocked(ref, f.bit)
		p.slots.Release(p.slots.Host, ref)
	}
	p.freeOrphansLocked()
	p.releasedLocked()
}

// freeOrphansLocked frees the orphans once nobody is left who may touch one.
func (p *Pool) freeOrphansLocked() {
	if len(p.members.previous)+len(p.members.tornHolders) > 0 {
		return
	}
	for _, ref := range p.members.torn {
		p.slots.Free(p.slots.Host, ref)
	}
	p.members.torn = nil
}

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
	sl, r := p.slots.Host.Slot(ref), p.slots.Host.Record(ref)
	sl.Holds = 0
	there := r.Length != 0 && p.slots.HostSlot(&r.Key) != registry.NoRef
	if r.Length != 0 && !there {
		block := tier.BlockOf(&r)
		p.slots.Occupy(p.slots.Host, ref, &block, storage.StateGranted, s, r)
		return true
	}
	p.slots.Grant(ref, s, r) // the record tells the next agent that the slot can be resumed
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
	sl := p.slots.Host.Slot(ref)
	sess.pinned++
	p.pinLocked(sess, ref, sl)
	return sl.Resident()
}
