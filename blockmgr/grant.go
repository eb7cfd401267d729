package blockmgr

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// Grant reserves host slots for the blocks that are not stored yet. Blocks that are
// resident in a tier, or that somebody is filling, count as present; one whose slot was
// granted and not filled for grantPatience does not. A full tier evicts
// its coldest blocks, but never an ancestor of the new block. A host tier that can still
// grow evicts nothing. Blocks without a slot are refused.
//
// Priority is that of the blocks, of those that are present too if theirs is lower. The
// slots are the session's until Commit, Abort or EndSession, and their records say so
// before Grant returns.
func (p *Pool) Grant(s SessionID, blocks []Block, priority uint32) (GrantResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return GrantResult{}, err
	}
	p.tickLocked()
	now := time.Now()
	if p.host == nil {
		p.count.Refused += uint64(len(blocks))
		return GrantResult{Refused: len(blocks)}, nil
	}
	res := GrantResult{Grants: make([]Grant, 0, len(blocks))}
	// What the call finds present stays until it ends: making room for a block by
	// evicting its parent would be for nothing.
	held := p.heldBuf[:0]
	for i := range blocks {
		b := &blocks[i]
		if present, ref := p.presentLocked(b, priority, now); present {
			res.Present++
			if ref != registry.NoRef {
				p.holdLocked(p.host, ref)
				held = append(held, ref)
			}
			continue
		}
		ref := p.allocForLocked(p.host, b)
		if ref == registry.NoRef {
			res.Refused++
			continue
		}
		r := recordOf(b, p.blockBytes)
		r.Priority = priority
		p.occupyLocked(p.host, ref, b, storage.StateGranted, s, r)
		sess.grant(ref, now)
		res.Grants = append(res.Grants, Grant{Index: i, Slot: p.host.name(ref)})
	}
	for _, ref := range held {
		p.releaseLocked(p.host, ref)
	}
	p.heldBuf = held[:0]
	p.count.Granted += uint64(len(res.Grants))
	p.count.Present += uint64(res.Present)
	p.count.Refused += uint64(res.Refused)
	p.wakeGrowerLocked()
	return res, nil
}

// presentLocked reports whether a block needs no slot, and its host slot if it
// is resident there.
func (p *Pool) presentLocked(b *Block, priority uint32, now time.Time) (bool, registry.Ref) {
	id := p.entryLocked(&b.Key)
	if id == registry.None {
		return false, registry.NoRef
	}
	e := p.reg.At(id)
	host, disk := e.Slots[registry.Host], e.Slots[registry.Disk]
	if disk != registry.NoRef && p.disk.slot(disk).resident() {
		p.reuseLocked(p.disk, disk, priority)
		if host == registry.NoRef {
			// A block that could not be read is worth another copy.
			return !p.broker.breaker.IsOpen() && p.writes.faults.reads[disk] == nil, registry.NoRef
		}
	}
	switch {
	case host == registry.NoRef:
		return false, registry.NoRef
	case !p.host.slot(host).resident():
		return !p.supersedeLocked(host, now), registry.NoRef
	}
	p.reuseLocked(p.host, host, priority)
	return true, host
}

// reuseLocked takes note of it that a block was offered again.
func (p *Pool) reuseLocked(t *tier, ref registry.Ref, priority uint32) {
	s := t.slot(ref)
	p.touchLocked(t, ref, s)
	if priority > s.priority {
		s.priority = priority
		t.put(ref, t.record(ref))
		p.settleLocked(t, ref, s)
	}
}

// Commit says that granted slots are filled. Either all of them are the
// session's or nothing happens (ErrBadSlot). The blocks are visible at once;
// checksums and the copies to disk follow in the background.
func (p *Pool) Commit(s SessionID, slots []Slot) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return err
	}
	refs, err := p.grantedLocked(sess, slots)
	if err != nil {
		return err
	}
	p.tickLocked()
	for _, ref := range refs {
		if sess.settle(ref) {
			p.commitLateLocked(s, ref)
			continue
		}
		r := p.host.record(ref)
		p.filledLocked(ref, &r)
	}
	p.count.Committed += uint64(len(refs))
	return nil
}

// filledLocked makes the block of a granted slot visible and queues its checksum.
func (p *Pool) filledLocked(ref registry.Ref, r *storage.Record) {
	s := p.host.slot(ref)
	s.session, s.tick = 0, p.clock
	s.holds++
	p.host.setState(s, storage.StateFilled)
	p.host.put(ref, *r)
	p.settleLocked(p.host, ref, s)
	p.storedLocked(p.host, ref, r)
	p.seals.queue.Push(ref)
	p.pending.operations++
	p.seals.work.Signal()
}

// Abort says that granted slots will not be filled; nobody writes into them any
// more. Either all of them are the session's or nothing happens (ErrBadSlot).
func (p *Pool) Abort(s SessionID, slots []Slot) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return err
	}
	refs, err := p.grantedLocked(sess, slots)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		sess.settle(ref)
		p.dropGrantLocked(ref, storage.StateFree)
	}
	p.count.Aborted += uint64(len(refs))
	return nil
}
