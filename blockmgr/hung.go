package blockmgr

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// grantPatience is how long a granted slot keeps its block from everybody else. Then
// another slot is granted for the block to whoever offers it.
const grantPatience = 5 * time.Second

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
	_, late = s.late[ref]
	delete(s.granted, ref)
	delete(s.late, ref)
	s.moved = time.Now()
	return late
}

// overdue is how many granted slots a session has that has settled none for
// grantPatience.
func (s *session) overdue(now time.Time) int {
	if now.Sub(s.moved) < grantPatience {
		return 0
	}
	return len(s.granted)
}

// supersedeLocked takes the block of a slot away that was granted and not filled for
// grantPatience, and reports whether it did. The slot stays its session's, whose
// engine may still copy into it: Commit frees it.
func (p *Pool) supersedeLocked(ref registry.Ref, now time.Time) bool {
	sl := p.host.slot(ref)
	owner := p.sessions[sl.session]
	if sl.state != storage.StateGranted || owner == nil || now.Sub(owner.granted[ref]) < grantPatience {
		return false
	}
	owner.late[ref] = struct{}{}
	parent := p.reg.Vacate(sl.entry, p.host.level)
	sl.entry = registry.None
	p.settleEntryLocked(p.host, parent)
	p.count.GrantsSuperseded++
	return true
}
