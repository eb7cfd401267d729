package blockmgr

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Grant reserves host slots for the blocks that are not stored yet. Resident blocks and
// blocks that somebody is filling count as present. A block whose slot was granted and
// not filled for grantTimeout does not. A full tier evicts its coldest blocks, but never
// an ancestor of the new block. A host tier that can still grow evicts nothing. Blocks
// without a slot are refused.
//
// priority is given to the new blocks, and to present blocks whose priority is lower. The
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
	if p.slots.Host == nil {
		p.count.Refused += uint64(len(blocks))
		return GrantResult{Refused: len(blocks)}, nil
	}
	res := GrantResult{Grants: make([]Grant, 0, len(blocks))}
	// Present blocks are held until the call ends, so that none of them is evicted for a
	// later block of the call.
	held := p.heldBuf[:0]
	for i := range blocks {
		b := &blocks[i]
		if present, ref := p.presentLocked(b, priority, now); present {
			res.Present++
			if ref != registry.NoRef {
				p.slots.Hold(p.slots.Host, ref)
				held = append(held, ref)
			}
			continue
		}
		ref := p.allocForLocked(p.slots.Host, b)
		if ref == registry.NoRef {
			res.Refused++
			continue
		}
		r := tier.RecordOf(b, p.blockBytes)
		r.Priority = priority
		p.slots.Occupy(p.slots.Host, ref, b, storage.StateGranted, s, r)
		sess.grant(ref, now)
		res.Grants = append(res.Grants, Grant{Index: i, Slot: p.slots.Host.Name(ref)})
	}
	for _, ref := range held {
		p.slots.Release(p.slots.Host, ref)
	}
	p.heldBuf = held[:0]
	p.count.Granted += uint64(len(res.Grants))
	p.count.Present += uint64(res.Present)
	p.count.Refused += uint64(res.Refused)
	p.wakeGrowerLocked()
	return res, nil
}

// presentLocked reports whether a block needs no slot, and its host slot if the block
// is resident there.
func (p *Pool) presentLocked(b *Block, priority uint32, now time.Time) (bool, registry.Ref) {
	id := p.slots.Find(&b.Key)
	if id == registry.None {
		return false, registry.NoRef
	}
	e := p.slots.Registry.At(id)
	host, disk := e.Slots[registry.Host], e.Slots[registry.Disk]
	if disk != registry.NoRef && p.slots.Disk.Slot(disk).Resident() {
		p.slots.Prefer(p.slots.Disk, disk, priority)
		if host == registry.NoRef {
			// A block that could not be read is worth another copy.
			return !p.broker.health.All.IsOpen() && !p.mover.ReadFailed(disk), registry.NoRef
		}
	}
	switch {
	case host == registry.NoRef:
		return false, registry.NoRef
	case !p.slots.Host.Slot(host).Resident():
		return !p.supersedeLocked(host, now), registry.NoRef
	}
	p.slots.Prefer(p.slots.Host, host, priority)
	return true, host
}

// Commit makes the blocks of granted slots visible. The caller has filled the slots.
// Checksums and the copies to disk follow in the background. ErrBadSlot: one of the slots
// is not granted to the session, and nothing has happened.
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
			p.commitSupersededLocked(s, ref)
			continue
		}
		r := p.slots.Host.Record(ref)
		p.fillLocked(ref, &r)
	}
	p.count.Committed += uint64(len(refs))
	return nil
}

// fillLocked makes the block of a granted slot visible and queues its checksum.
func (p *Pool) fillLocked(ref registry.Ref, r *storage.Record) {
	p.slots.Fill(ref, r)
	p.mover.Seal(ref)
}

// Abort gives granted slots back. Nobody writes into them any more. ErrBadSlot: one of
// the slots is not granted to the session, and nothing has happened.
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
		p.slots.DropGrant(ref, storage.StateFree)
	}
	p.count.Aborted += uint64(len(refs))
	return nil
}

// grantTimeout is how long a granted slot keeps its block from everybody else. After
// that another slot is granted for the block to whoever offers it, and the first slot
// is superseded.
const grantTimeout = 5 * time.Second

// supersedeLocked takes the block away from a slot that was granted and not filled
// for grantTimeout, and reports whether it did. The session keeps the slot, because
// its engine may still copy into it; see commitSupersededLocked.
func (p *Pool) supersedeLocked(ref registry.Ref, now time.Time) bool {
	sl := p.slots.Host.Slot(ref)
	owner := p.members.sessions[sl.Session]
	if sl.State != storage.StateGranted || owner == nil || now.Sub(owner.granted[ref]) < grantTimeout {
		return false
	}
	p.takeBlockLocked(owner, ref, sl)
	p.count.GrantsSuperseded++
	return true
}

// takeBlockLocked takes its block away from a granted slot of a session.
func (p *Pool) takeBlockLocked(owner *session, ref registry.Ref, sl *tier.Slot) {
	owner.superseded[ref] = struct{}{}
	p.slots.Vacate(sl)
}

// commitSupersededLocked commits a slot whose block was granted to somebody else. The
// session that commits first has the block: otherwise engines that all take longer
// than grantTimeout would never store it. A slot whose block is in host memory already
// is freed.
func (p *Pool) commitSupersededLocked(s SessionID, ref registry.Ref) {
	r := p.slots.Host.Record(ref)
	if r.Length != 0 && p.unfilledLocked(&r.Key) {
		block := tier.BlockOf(&r)
		p.slots.Occupy(p.slots.Host, ref, &block, storage.StateGranted, s, r)
		p.fillLocked(ref, &r)
		return
	}
	p.slots.DropGrant(ref, storage.StateFree)
	p.count.Deduplicated++
}

// unfilledLocked reports whether no host slot has the block. It takes the block away
// from a slot that is granted and not filled.
func (p *Pool) unfilledLocked(key *kv.StoredKey) bool {
	ref := p.slots.HostSlot(key)
	if ref == registry.NoRef {
		return true
	}
	sl := p.slots.Host.Slot(ref)
	owner := p.members.sessions[sl.Session]
	if sl.State != storage.StateGranted || owner == nil {
		return false
	}
	p.takeBlockLocked(owner, ref, sl)
	return true
}
