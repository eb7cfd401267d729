package blockmgr

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// grantPatience is how long a granted slot keeps its block from everybody else. Then
// another slot is granted for the block to whoever offers it.
const grantTimeout = 5 * time.Second

// grant notes that the session was granted a slot at a moment.
func (s *session) grant(ref registry.Ref, now time.Time) {
	if len(s.granted) == 0 {
		s.moved = now
	}
	s.granted[ref] = now
}

// settle notes that a granted slot is committed, aborted or given back. late is true
// when somebody else got a slot for its block meanwhile.
func (s *session) settle(ref registry.Ref) (late bool) {
	_, late = s.superseded[ref]
	delete(s.granted, ref)
	delete(s.superseded, ref)
	s.moved = time.Now()
	return late
}

// overdue is how many granted slots a session has that has settled none for
// grantPatience.
func (s *session) overdue(now time.Time) int {
	if now.Sub(s.moved) < grantTimeout {
		return 0
	}
	return len(s.granted)
}

// supersedeLocked takes the block of a slot away that was granted and not filled for
// grantPatience, and reports whether it did. The slot stays its session's, whose
// engine may still copy into it: see commitLateLocked.
func (p *Pool) supersedeLocked(ref registry.Ref, now time.Time) bool {
	sl := p.host.slot(ref)
	owner := p.members.sessions[sl.session]
	if sl.state != storage.StateGranted || owner == nil || now.Sub(owner.granted[ref]) < grantTimeout {
		return false
	}
	p.takeBlockLocked(owner, ref, sl)
	p.count.GrantsSuperseded++
	return true
}

// takeBlockLocked takes its block away from a granted slot of a session.
func (p *Pool) takeBlockLocked(owner *session, ref registry.Ref, sl *slot) {
	owner.superseded[ref] = struct{}{}
	parent := p.reg.Vacate(sl.entry, p.host.level)
	sl.entry = registry.None
	p.settleEntryLocked(p.host, parent)
}

// commitLateLocked commits a slot whose block was granted to somebody else meanwhile.
// Who commits first has the block: otherwise engines that all take longer than
// grantPatience would never store it. The slot is free when host memory has the block.
func (p *Pool) commitLateLocked(s SessionID, ref registry.Ref) {
	r := p.host.record(ref)
	if r.Length != 0 && p.unfilledLocked(&r.Key) {
		block := blockOf(&r)
		p.occupyLocked(p.host, ref, &block, storage.StateGranted, s, r)
		p.filledLocked(ref, &r)
		return
	}
	p.dropGrantLocked(ref, storage.StateFree)
	p.count.Deduplicated++
}

// unfilledLocked reports whether a block has no host slot. It takes the block away from
// a slot that is granted and not filled.
func (p *Pool) unfilledLocked(key *kv.StoredKey) bool {
	ref := p.hostSlotLocked(key)
	if ref == registry.NoRef {
		return true
	}
	sl := p.host.slot(ref)
	owner := p.members.sessions[sl.session]
	if sl.state != storage.StateGranted || owner == nil {
		return false
	}
	p.takeBlockLocked(owner, ref, sl)
	return true
}
