package blockmgr

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Grant reserves host slots for the blocks that are not stored yet. Resident and in-flight
// blocks count as present, except a block whose granted slot was not filled for grantTimeout.
// A full tier evicts its coldest blocks of the lowest priority, but never an ancestor of the
// new block. A host tier that can still grow evicts nothing. Blocks without a slot are refused.
//
// The new blocks get priority, and so do present blocks of a lower priority. The slots are the
// session's until Commit, Abort or EndSession. Their records name the session before Grant
// returns.
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
	// Present blocks are held until Grant returns, so that a later block of the call evicts
	// none of them.
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
		ref := registry.NoRef
		if p.slots.TenantRoomFor(p.slots.Host, b) {
			ref = p.allocForLocked(p.slots.Host, b)
		}
		if ref == registry.NoRef {
			res.Refused++
			continue
		}
		r := p.slots.RecordOf(b)
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
	p.armExpiryLocked()
	return res, nil
}

// presentLocked reports whether Grant needs no slot for a block: a tier has the block, or the
// block is on its way into host memory. It raises the priority of a resident block. hostSlot is
// its host slot, or NoRef if the block is not resident in host memory.
func (p *Pool) presentLocked(b *Block, priority uint32, now time.Time) (present bool, hostSlot registry.Ref) {
	id := p.slots.Find(&b.Key)
	if id == registry.None {
		return false, registry.NoRef
	}
	e := p.slots.Registry.At(id)
	host, disk := e.Slots[registry.Host], e.Slots[registry.Disk]
	p.slots.Touch(id)
	if disk != registry.NoRef && p.slots.Disk.Slot(disk).Resident() {
		p.slots.Prefer(p.slots.Disk, disk, priority)
		if host == registry.NoRef {
			// A block on disk that could not be read needs a copy in host memory.
			return !p.broker.health.All.IsOpen() && !p.mover.ReadFailed(disk), registry.NoRef
		}
	}
	switch {
	case host == registry.NoRef:
		return false, registry.NoRef
	case !p.slots.Host.Slot(host).Resident(): // an engine fills the slot, or a read from disk
		return !p.supersedeLocked(host, now), registry.NoRef
	}
	p.slots.Prefer(p.slots.Host, host, priority)
	return true, host
}

// Commit makes the blocks of granted slots visible. The caller has filled the slots. The pool
// computes checksums and copies the blocks to disk in the background. If another session took
// over a block after grantTimeout, the first Commit stores the block, and the slot of the
// other is freed. Commit changes nothing when it fails. ErrBadSlot: one of the slots is not
// granted to the session. ErrNoSession and ErrClosed: no such session, or the pool is closed.
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
		if superseded := sess.endGrant(ref); superseded {
			p.commitSupersededLocked(s, ref)
			continue
		}
		r := p.slots.Host.Record(ref)
		p.fillLocked(ref, &r)
	}
	p.count.Committed += uint64(len(refs))
	p.armExpiryLocked()
	return nil
}

// fillLocked makes the block of a granted slot, with record r, visible and queues its checksum.
func (p *Pool) fillLocked(ref registry.Ref, r *storage.Record) {
	p.slots.Fill(ref, r)
	p.mover.Seal(ref)
}

// Abort frees granted slots. The engine must have stopped writing into them. ErrBadSlot: one of
// the slots is not granted to the session, and Abort has changed nothing.
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
		sess.endGrant(ref)
		p.slots.DropGrant(ref, storage.StateFree)
	}
	p.count.Aborted += uint64(len(refs))
	return nil
}

// grantTimeout is the time for which a granted slot reserves its block. Then the next session
// that offers the block is granted another slot, and the first slot is superseded.
const grantTimeout = 5 * time.Second

// supersedeLocked takes the block from a slot that was granted grantTimeout ago and is not
// filled, and reports whether it did. The session keeps the slot, because its engine may still
// copy into it and commit it.
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

// takeBlockLocked takes the block from a granted slot of a session, which keeps the slot.
func (p *Pool) takeBlockLocked(owner *session, ref registry.Ref, sl *tier.Slot) {
	owner.superseded[ref] = struct{}{}
	p.slots.Vacate(sl)
}

// commitSupersededLocked commits slot ref of session s, which took longer than grantTimeout, so that
// another session was granted a slot for the same block. The first of them to commit stores the
// block: otherwise engines that are all this slow would never store it. The other session's slot is
// then superseded in turn. If the block is stored already, the slot is freed.
func (p *Pool) commitSupersededLocked(s SessionID, ref registry.Ref) {
	r := p.slots.Host.Record(ref)
	// The record still names the block that the slot has lost. Its length is 0 for a slot that came
	// from an earlier agent without a block.
	if r.Length != 0 && p.unfilledLocked(&r.Key) {
		block := tier.BlockOf(&r)
		p.slots.Occupy(p.slots.Host, ref, &block, storage.StateGranted, s, r)
		p.fillLocked(ref, &r)
		return
	}
	p.slots.DropGrant(ref, storage.StateFree)
	p.count.Deduplicated++
}

// unfilledLocked reports whether the block may get another host slot: no slot has its bytes or
// reads them from disk. It takes the block from a slot that another session has not filled yet.
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
