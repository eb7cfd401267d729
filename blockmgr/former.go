package blockmgr

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Former is a session of an earlier agent of this node. What it was granted and
// had pinned stays out of use until Forget or Resume, because its processes may
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
type former struct {
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
func (m *Manager) formersOf(ns kv.NamespaceID) map[SessionID]*former {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[SessionID]*former{}
	for id, r := range m.formers {
		if r.Namespace != ns {
			continue
		}
		f := &former{granted: map[registry.Ref]struct{}{}, pinned: map[registry.Ref]struct{}{}}
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
	if !p.closed {
		p.forgetLocked(s)
	}
}

func (p *Pool) forgetLocked(s SessionID) {
	f := p.formers[s]
	if f == nil {
		return
	}
	delete(p.formers, s)
	for ref := range f.granted {
		p.freeLocked(p.host, ref)
	}
	for ref := range f.pinned {
		p.clearPinLocked(ref, f.bit)
		p.releaseLocked(p.host, ref)
	}
	if len(p.formers) == 0 {
		for _, ref := range p.orphans {
			p.freeLocked(p.host, ref)
		}
		p.orphans = nil
	}
	p.releasedLocked()
}

// Resume gives session s what it still holds of its former self: of the granted
// and pinned slots that it names, those that are returned are its own again, as
// if it had just been granted them or had looked them up. Everything else that
// the former session held is free, so that the caller must name every slot that
// a copy of it may still touch.
func (m *Manager) Resume(p *Pool, s, formerID SessionID, granted, pinned []Slot) (g, pn []Slot, err error) {
	m.mu.Lock()
	r := m.formers[formerID]
	m.mu.Unlock()
	if r == nil || r.Namespace != p.id {
		return nil, nil, fmt.Errorf("former session %d: %w", formerID, ErrNoSession)
	}
	if g, pn, err = p.resume(s, formerID, granted, pinned); err != nil {
		return nil, nil, err
	}
	m.Forget(formerID)
	return g, pn, nil
}

func (p *Pool) resume(s, formerID SessionID, granted, pinned []Slot) (g, pn []Slot, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, nil, err
	}
	f := p.formers[formerID]
	if f == nil {
		return nil, nil, fmt.Errorf("former session %d: %w", formerID, ErrNoSession)
	}
	p.tickLocked()
	for _, name := range granted {
		ref, ok := p.findLocked(name)
		if _, held := f.granted[ref]; !ok || !held {
			continue
		}
		if p.regrantLocked(s, sess, ref) {
			delete(f.granted, ref)
			g = append(g, name)
		}
	}
	for _, name := range pinned {
		ref, ok := p.findLocked(name)
		_, held := f.pinned[ref]
		if !ok || !held || sess.pinned >= p.cfg.MaxPinsPerSession || !p.host.slot(ref).resident() {
			continue
		}
		sess.pinned++
		p.pinLocked(sess, ref, p.host.slot(ref))
		pn = append(pn, name)
	}
	p.count.Resumed += uint64(len(g) + len(pn))
	return g, pn, nil
}

// regrantLocked turns a slot that a former session was granted back into a
// granted one. When somebody else has brought the block in meanwhile it is late:
// the copy into it goes on, and Commit frees it. One that was granted without a
// block had a handle, which died with its agent.
func (p *Pool) regrantLocked(s SessionID, sess *session, ref registry.Ref) bool {
	r := p.host.record(ref)
	if r.Length == 0 {
		return false
	}
	p.host.slot(ref).holds = 0
	if id := p.reg.Find(&r.Key); id != registry.None && p.reg.At(id).Slots[registry.Host] != registry.NoRef {
		sl := p.host.slot(ref)
		sl.session, sl.tick = s, p.clock
		p.host.setState(sl, storage.StateGranted)
		p.host.put(ref, r) // which tells the next agent that it can be resumed
		sess.granted[ref], sess.late[ref] = struct{}{}, struct{}{}
		return true
	}
	block := blockOf(&r)
	p.occupyLocked(p.host, ref, &block, storage.StateGranted, s, r)
	sess.granted[ref] = struct{}{}
	return true
}
