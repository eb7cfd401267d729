package blockmgr

import (
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// Grant decides which of the blocks are worth copying, before anything is
// copied: a block that is resident in either tier, or that somebody is filling
// already, is present; the others get a slot each, for which the coldest
// blocks leave, but none that comes before it in its own sequence; what finds
// no slot is refused. The slots are the session's until Commit, Abort or
// EndSession, and their records say so before Grant returns.
func (p *Pool) Grant(s SessionID, blocks []Block) (GrantResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return GrantResult{}, err
	}
	if p.host == nil {
		p.count.Refused += uint64(len(blocks))
		return GrantResult{Refused: len(blocks)}, nil
	}
	var res GrantResult
	// What the call finds present stays until it ends: making room for a block by
	// evicting its parent would be for nothing.
	var held []uint32
	for i := range blocks {
		b := &blocks[i]
		if present, ref := p.presentLocked(b); present {
			res.Present++
			if ref != none {
				p.holdLocked(p.host, ref)
				held = append(held, ref)
			}
			continue
		}
		ref := p.allocForLocked(p.host, b)
		if ref == none {
			res.Refused++
			continue
		}
		p.occupyLocked(p.host, ref, b, storage.StateGranted, s, recordOf(b, p.blockBytes))
		sess.granted[ref] = struct{}{}
		res.Grants = append(res.Grants, Grant{Index: i, Slot: p.host.name(ref)})
	}
	for _, ref := range held {
		p.releaseLocked(p.host, ref)
	}
	p.count.Granted += uint64(len(res.Grants))
	p.count.Present += uint64(res.Present)
	p.count.Refused += uint64(res.Refused)
	p.wakeGrowerLocked()
	return res, nil
}

// presentLocked reports whether a block needs no slot, and its host slot if it
// is resident there.
func (p *Pool) presentLocked(b *Block) (bool, uint32) {
	id := p.reg.find(b.Key)
	if id == none {
		return false, none
	}
	e := *p.reg.at(id)
	if ref := e.slots[diskLevel]; ref != none && p.disk.slots[ref].resident() {
		p.touchLocked(p.disk, ref)
		if e.slots[hostLevel] == none {
			return true, none
		}
	}
	ref := e.slots[hostLevel]
	if ref == none {
		return false, none
	}
	if !p.host.slots[ref].resident() {
		return true, none
	}
	p.touchLocked(p.host, ref)
	return true, ref
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
	for _, ref := range refs {
		delete(sess.granted, ref)
		r := p.host.record(ref)
		p.host.slots[ref].session = 0
		p.host.slots[ref].holds++
		p.host.setState(ref, storage.StateFilled)
		p.host.put(ref, r)
		p.touchLocked(p.host, ref)
		p.storedLocked(p.host, &r)
		p.sealing.push(ref)
		p.busy++
	}
	p.count.Committed += uint64(len(refs))
	p.sealWork.Broadcast()
	return nil
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
		delete(sess.granted, ref)
		p.dropLocked(p.host, ref, storage.StateFree)
	}
	p.count.Aborted += uint64(len(refs))
	return nil
}
