package blockmgr

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
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
		p.freeLocked(p.host, ref)
	}
	for ref := range f.pinned {
		p.clearPinLocked(ref, f.bit)
		p.releaseLocked(p.host, ref)
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
		p.freeLocked(p.host, ref)
	}
	p.members.torn = nil
}
