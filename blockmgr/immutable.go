package blockmgr

import (
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ImmutableBlock is a block in host memory that stays there while the handle is
// held: one pin of its session. Several handles may have the same block. It is
// safe for concurrent use.
type ImmutableBlock struct {
	pool    *Pool
	session SessionID
	sess    *session
	slot    Slot
	block   Block
	// released is guarded by pool.mu.
	released bool
}

// Key is the block's key.
func (b *ImmutableBlock) Key() kv.StoredKey { return b.block.Key }

// Block is the block's identity, to name it to Lookup or to put another block
// after it.
func (b *ImmutableBlock) Block() Block { return b.block }

// Slot names the slot that the block is in.
func (b *ImmutableBlock) Slot() Slot { return b.slot }

// Data are the block's bytes, in the slot, which nobody may change. It is nil
// once the handle is not Valid. The slice must not be touched after Release, the
// end of the session or Manager.Close.
func (b *ImmutableBlock) Data() []byte {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	ref, ok := b.pinnedLocked()
	if !ok || !b.pool.slots.Host.Slot(ref).Resident() {
		return nil
	}
	return b.pool.dataLocked(ref)
}

// Valid reports whether the handle still has its block: it is not released, its
// session has not ended, and the slot is of the generation that it was and its
// memory undamaged.
func (b *ImmutableBlock) Valid() bool {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	ref, ok := b.pinnedLocked()
	return ok && b.pool.slots.Host.Slot(ref).Resident()
}

// Release gives the handle's pin back; the block may be evicted once it has no
// other. A second one does nothing.
func (b *ImmutableBlock) Release() {
	p := b.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if ref, ok := b.pinnedLocked(); ok {
		b.sess.pinned--
		p.unpinLocked(b.sess, ref, p.slots.Host.Slot(ref))
	}
	b.released = true
}

// pinnedLocked is the block's slot while the handle has its pin.
func (b *ImmutableBlock) pinnedLocked() (registry.Ref, bool) {
	p := b.pool
	if b.released || p.life.closed || p.members.sessions[b.session] != b.sess {
		return registry.NoRef, false
	}
	ref, ok := p.findLocked(b.slot)
	return ref, ok && b.sess.pins.of(ref) > 0
}

// handleLocked makes a handle of a pin that the session has.
func (p *Pool) handleLocked(s SessionID, sess *session, ref registry.Ref) *ImmutableBlock {
	r := p.slots.Host.Record(ref)
	return &ImmutableBlock{pool: p, session: s, sess: sess, slot: p.slots.Host.Name(ref), block: tier.BlockOf(&r)}
}
