package blockmgr

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
)

// ErrNoSession: the pool does not know the session, or the session has ended.
var ErrNoSession = errors.New("no such session in this pool")

// ErrSessions: the node has as many sessions as its session table holds.
var ErrSessions = storage.ErrSessions

// Process names a process so that the next agent can tell whether it still runs.
type Process = storage.Process

// session has the pins and grants of one session in the pool.
type session struct {
	// pins counts how often the session has pinned each host slot. bit marks those slots in
	// the pin words, which outlive the agent.
	pins pinCounts
	bit  uint64
	// pinned counts the pins of the session, and those that running lookups may add.
	pinned int
	// slots counts the pinned slots, reserved the slots that running lookups may add.
	slots, reserved int
	// granted has the granted slots and the times of their grants.
	granted map[registry.Ref]time.Time
	// superseded are the granted slots whose block another session has stored, or was
	// granted another slot for; see supersedeLocked.
	superseded map[registry.Ref]struct{}
	// lastGrantEnd is the time at which the session last committed or aborted a granted slot,
	// or at which it got the first of its current grants.
	lastGrantEnd time.Time
}

// grant records that the session was granted a slot at time now.
func (s *session) grant(ref registry.Ref, now time.Time) {
	if len(s.granted) == 0 {
		s.lastGrantEnd = now
	}
	s.granted[ref] = now
}

// endGrant removes a slot from the granted ones: the session commits, aborts or releases the slot.
// superseded says that the slot had lost its block to another session.
func (s *session) endGrant(ref registry.Ref) (superseded bool) {
	_, superseded = s.superseded[ref]
	delete(s.granted, ref)
	delete(s.superseded, ref)
	s.lastGrantEnd = time.Now()
	return superseded
}

// overdue returns the number of granted slots, 0 if one was ended within grantTimeout.
func (s *session) overdue(now time.Time) int {
	if now.Sub(s.lastGrantEnd) < grantTimeout {
		return 0
	}
	return len(s.granted)
}

// unreserve ends the reservations of reserveLocked for a lookup's candidates.
func (s *session) unreserve(found []candidate) {
	for i := range found {
		if found[i].reserved {
			s.reserved--
		}
	}
}

// BeginSession adds a session to the pool. The session and its processes are on record before
// BeginSession returns, so that the next agent waits for them. Session ids must be unique over
// the lives of all agents of the node. ErrSessions: the node has too many sessions.
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
		p.wakeGrowerLocked() // an engine starts: its first prompts need free slots
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

// AddProcess records another process of a session.
func (p *Pool) AddProcess(s SessionID, proc Process) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.checkLocked(s); err != nil {
		return err
	}
	return p.addProcessLocked(s, proc)
}

// addProcessLocked records another process of a session, which the caller has checked.
func (p *Pool) addProcessLocked(s SessionID, proc Process) error {
	if p.slots.Host == nil {
		return nil
	}
	if err := p.broker.host.Sessions().AddProcess(uint64(s), proc); err != nil {
		return fmt.Errorf("session %d: process %d: %w", s, proc.PID, err)
	}
	return nil
}

// EndSession ends a session and drops its pins. With gone nil it frees the granted slots.
// Otherwise they stay out of use until gone is closed, because a dying worker may still be
// copying into them; waits reports whether there are any. EndSession ignores an unknown session.
func (p *Pool) EndSession(s SessionID, gone <-chan struct{}) (waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed {
		return false
	}
	waits, _ = p.endLocked(s, gone) // an unknown session has nothing to end
	return waits
}

// endLocked drops the pins of a session and frees its granted slots. With gone, these stay out of
// use until gone is closed; waits reports whether there are any. ErrNoSession: no such session.
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
		p.slots.AfterRelease(p.slots.Host, ref, sl)
	})
	defer p.releasedLocked() // the pool may be unused now, and give memory to others
	var waiting []registry.Ref
	for ref := range sess.granted {
		if gone == nil {
			p.slots.DropGrant(ref, storage.StateFree)
			continue
		}
		p.slots.DropGrant(ref, storage.StateQuarantined)
		// This hold keeps the extent, which the writer has mapped. A granted slot has no
		// other hold.
		p.slots.Host.Slot(ref).Holds++
		waiting = append(waiting, ref)
	}
	if p.slots.Host == nil {
		return false, nil
	}
	p.broker.host.Sessions().ReleasePins(uint64(s))
	// Its processes may also copy into torn slots, which are not among the granted ones.
	if _, tornHolder := p.members.tornHolders[s]; gone == nil || len(waiting) == 0 && !tornHolder {
		p.goneLocked(s)
		return false, nil
	}
	p.members.exiting++
	if !p.stopped() { // a stopped pool leaves the slots to the next agent
		p.life.workers.Go(func() { p.freeWhenGone(s, waiting, gone) })
	}
	return true, nil
}

// goneLocked ends a session's entry in the session table, because its processes have exited.
func (p *Pool) goneLocked(s SessionID) {
	delete(p.members.tornHolders, s)
	p.freeTornLocked()
	p.broker.host.Sessions().End(uint64(s))
}

// endSessions ends all sessions.
func (p *Pool) endSessions() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.members.sessions {
		_, _ = p.endLocked(s, nil) // it is there
	}
}

// freeWhenGone frees quarantined slots when gone is closed. If the pool closes first, the slots
// stay quarantined for the next agent: the session table still names the processes.
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

// Unpin drops one pin of each of the slots. It skips slots that the session has not pinned;
// ErrBadSlot names the first of them.
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
func (p *Pool) findLocked(name Slot) (ref registry.Ref, ok bool) {
	if p.slots.Host != nil {
		ref, ok = p.slots.Host.Lookup(name)
	}
	return ref, ok
}

// grantedLocked returns the granted slots that a caller of Commit or Abort named. ErrBadSlot: a
// slot is not granted to the session, belongs to a MutableBlock, or is named twice.
func (p *Pool) grantedLocked(sess *session, slots []Slot) ([]registry.Ref, error) {
	refs := make([]registry.Ref, 0, len(slots))
	seen := make(map[registry.Ref]struct{}, len(slots))
	for _, name := range slots {
		ref, found := p.findLocked(name)
		granted := found && p.grantedBlockLocked(sess, ref)
		if _, twice := seen[ref]; twice || !granted {
			return nil, fmt.Errorf("slot %d/%d generation %d: %w", name.Extent, name.Index, name.Generation, ErrBadSlot)
		}
		seen[ref] = struct{}{}
		refs = append(refs, ref)
	}
	return refs, nil
}

// grantedBlockLocked reports whether Grant gave the slot to the session. A MutableBlock's slot has
// no block, and is not superseded.
func (p *Pool) grantedBlockLocked(sess *session, ref registry.Ref) bool {
	_, granted := sess.granted[ref]
	_, superseded := sess.superseded[ref]
	return granted && (superseded || p.slots.Host.Slot(ref).Entry != registry.None)
}

// pinCounts counts the pins of one session for each host slot. It takes four bytes for every
// slot of an extent in which the session has ever pinned a slot.
type pinCounts struct{ extents [][]uint32 }

// add counts one pin of slot ref and returns how many pins the slot had before. extentSlots is
// the number of slots of the slot's extent.
func (c *pinCounts) add(ref registry.Ref, extentSlots int) (before uint32) {
	extent := int(ref.Extent())
	for len(c.extents) <= extent {
		c.extents = append(c.extents, nil)
	}
	if c.extents[extent] == nil {
		c.extents[extent] = make([]uint32, extentSlots)
	}
	before = c.extents[extent][ref.Slot()]
	c.extents[extent][ref.Slot()]++
	return before
}

// of returns the number of pins of a slot.
func (c *pinCounts) of(ref registry.Ref) uint32 {
	n := ref.Extent()
	if int(n) >= len(c.extents) || c.extents[n] == nil {
		return 0
	}
	return c.extents[n][ref.Slot()]
}

// sub removes one pin of a pinned slot, and returns how many are left.
func (c *pinCounts) sub(ref registry.Ref) (left uint32) {
	at := &c.extents[ref.Extent()][ref.Slot()]
	*at--
	return *at
}

// each calls do for every slot that the session has pinned; n is the number of its pins.
func (c *pinCounts) each(do func(ref registry.Ref, n uint32)) {
	for extent, counts := range c.extents {
		for i, n := range counts {
			if n > 0 {
				do(registry.MakeRef(uint32(extent), uint32(i)), n)
			}
		}
	}
}

// forget drops an extent that leaves the tier. None of its slots is pinned.
func (c *pinCounts) forget(extent uint32) {
	if int(extent) < len(c.extents) {
		c.extents[extent] = nil
	}
}

// pinLocked adds a pin of a session to a slot. The session's first pin marks the slot's pin
// word, where the next agent finds it.
func (p *Pool) pinLocked(sess *session, ref registry.Ref, s *tier.Slot) {
	if s.Pins++; s.Pins == 1 {
		p.slots.Host.Pinned++
	}
	e, i := p.slots.Host.At(ref)
	if sess.pins.add(ref, len(e.Slots)) == 0 {
		sess.slots++
		e.Records.SetPins(i, e.Records.Pins(i)|sess.bit)
	}
}

// unpinLocked removes one pin of a session from a slot that it has pinned.
func (p *Pool) unpinLocked(sess *session, ref registry.Ref, s *tier.Slot) {
	if sess.pins.sub(ref) == 0 {
		sess.slots--
		p.clearPinLocked(ref, sess.bit)
	}
	p.dropPinsLocked(s, 1)
	p.slots.AfterRelease(p.slots.Host, ref, s)
}

// dropPinsLocked removes n pins from a slot.
func (p *Pool) dropPinsLocked(s *tier.Slot, n uint32) {
	if s.Pins -= n; s.Pins == 0 {
		p.slots.Host.Pinned--
	}
}

// pinRoomLocked returns how many more slots a session may pin. With Config.SharePins a
// session may pin three quarters of the slots that no other session has pinned, counted
// for the host tier at its full size. A hung session then leaves room for other sessions.
func (p *Pool) pinRoomLocked(sess *session) int {
	if !p.cfg.SharePins {
		return math.MaxInt
	}
	pinnedByOthers := p.slots.Host.Pinned - sess.slots
	spare := max(p.sizeLocked(p.slots.Host)-pinnedByOthers, 0)
	share := spare - spare/4
	return max(share-sess.slots-sess.reserved, 0)
}

// reserveLocked cuts a lookup's candidates before the first that the session may not pin. It also
// reserves the pins of the others, so that two lookups cannot exceed the bound together.
func (p *Pool) reserveLocked(sess *session, blocks []Block, found []candidate) []candidate {
	room := p.pinRoomLocked(sess)
	for i := range found {
		c := &found[i]
		if c.ref != registry.NoRef && sess.pins.of(c.ref) > 0 {
			continue // another pin of a pinned slot takes no room
		}
		if room == 0 {
			p.count.PinsRefused++
			p.abandonLocked(blocks, found, i)
			return found[:i]
		}
		room--
		c.reserved = true
		sess.reserved++
	}
	return found
}

// clearPinLocked clears the mark of a session in a slot's pin word.
func (p *Pool) clearPinLocked(ref registry.Ref, bit uint64) {
	e, i := p.slots.Host.At(ref)
	e.Records.SetPins(i, e.Records.Pins(i)&^bit)
}
