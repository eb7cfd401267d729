package residency

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// maxEventBlocks caps one event, so that an event fits any sensible message
	// limit (512 stored blocks are about 30 KiB on the wire).
	maxEventBlocks = 512
	// maxPendingEvents and maxPendingBlocks bound what waits for Flush; a change
	// beyond them flushes first.
	maxPendingEvents = kvevent.MaxEventsPerMessage
	maxPendingBlocks = kvevent.MaxBlocksPerMessage
)

// change is a pending event. Its blocks are n elements from index from on, of
// the pending stored blocks or of the pending removed hashes.
type change struct {
	kind      kvevent.Kind
	tier      kv.Tier
	hasParent bool
	parent    kv.SequenceHash
	start     uint32
	from, n   int
}

// pendStored appends a newly resident block to the pending changes. It joins the
// last change when that stores the block's parent as its last block.
func (tx *Tx) pendStored(t kv.Tier, h kv.SequenceHash, b *Block) {
	tx.boundPending()
	if c := tx.lastPending(kvevent.Stored, t); c != nil && b.HasParent() && tx.stored[len(tx.stored)-1].Hash == b.Parent {
		c.n++
	} else {
		tx.pending = append(tx.pending, change{
			kind: kvevent.Stored, tier: t,
			parent: b.Parent, hasParent: b.HasParent(), start: b.Position(),
			from: len(tx.stored), n: 1,
		})
	}
	tx.stored = append(tx.stored, kvevent.StoredBlock{Hash: h, Local: b.Local})
}

// pendRemoved appends a removal to the pending changes. It joins the last change
// when that is a removal from the same tier.
func (tx *Tx) pendRemoved(t kv.Tier, h kv.SequenceHash) {
	tx.boundPending()
	if c := tx.lastPending(kvevent.Removed, t); c != nil {
		c.n++
	} else {
		tx.pending = append(tx.pending, change{kind: kvevent.Removed, tier: t, from: len(tx.removed), n: 1})
	}
	tx.removed = append(tx.removed, h)
}

// lastPending returns the last pending change if it is of that kind and tier and
// has room for a block more, else nil.
func (tx *Tx) lastPending(k kvevent.Kind, t kv.Tier) *change {
	if len(tx.pending) == 0 {
		return nil
	}
	c := &tx.pending[len(tx.pending)-1]
	if c.kind != k || c.tier != t || c.n == maxEventBlocks {
		return nil
	}
	return c
}

// boundPending makes room for one more pending change of one block.
func (tx *Tx) boundPending() {
	if len(tx.pending) < maxPendingEvents && len(tx.stored)+len(tx.removed) < maxPendingBlocks {
		return
	}
	tx.stats.InlineFlushes++
	tx.Flush()
}

func (tx *Tx) resetPending() {
	tx.pending = tx.pending[:0]
	tx.stored = tx.stored[:0]
	tx.removed = tx.removed[:0]
}
