package residency

import (
	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// adopt adds the blocks in a chunk of the pool's table, without events: consumers take a
// snapshot for them. It reports whether any (block, tier) pair is new.
func (m *Merged) adopt(chunk *dense.Chunk[Block]) (grown bool) {
	m.out.Update(func(tx *Tx) {
		before := tx.primary.pairs + tx.grouped.pairs
		for i := range chunk {
			if b := chunk[i].Value; b.Refs != 0 {
				m.adoptBlock(tx, kv.SequenceHash(chunk[i].Key()), b)
			}
		}
		grown = tx.primary.pairs+tx.grouped.pairs > before
	})
	return grown
}

// adoptBlock adds the block with key h, a copy from the pool's table, without a stored event. The pool has
// the block in each tier in which b.Refs is not 0. A full table drops the block; Stats counts it.
func (m *Merged) adoptBlock(tx *Tx, h kv.SequenceHash, b Block) {
	tiers := b.Refs
	b.Refs = 0 // counts in the pool's table, bits for the sources in the Merged's
	slot, found := tx.Find(h)
	if !found {
		if slot, found = m.add(tx, h, b); !found {
			return
		}
	}
	for _, t := range kv.Tiers {
		if tiers.Of(t) > 0 {
			m.addSource(tx, poolSource, t, slot, false)
		}
	}
}

// tellStateJoined calls StateJoined of every sink that has it, after the blocks of a pool came into
// the Merged from the pool's table and not by events. Such a sink announces the snapshot anew;
// without that its readers would never hear of these blocks.
func (m *Merged) tellStateJoined() {
	m.out.Update(func(tx *Tx) {
		tx.Flush() // the events before this moment, which a sink must not take for later ones
		for _, sink := range tx.sinks {
			if o, ok := sink.(StateObserver); ok {
				o.StateJoined()
			}
		}
	})
}

// appendPoolBlocks appends the blocks in slots first to end-1 that the pool has, once for
// each of the pool's tiers.
func (m *Merged) appendPoolBlocks(dst []poolBlock, first, end uint32) []poolBlock {
	m.out.Update(func(tx *Tx) {
		for slot := first; slot < min(end, tx.table.Slots()); slot++ {
			for _, t := range kv.Tiers {
				if b := tx.Block(slot); b.Refs.Of(m.shownTier(t))&m.sourceBit(poolSource, t) != 0 {
					dst = append(dst, poolBlock{pair{t, tx.Hash(slot)}, b.Group(), b.Parent})
				}
			}
		}
	})
	return dst
}

// poolBlock is a block that the pool has in one tier; hash is its key. A block of another group than
// the primary one is named by the block of the primary group at which it ends.
type poolBlock struct {
	pair
	group uint32
	named kv.SequenceHash
}

// removed returns the event that removes the block.
func (b *poolBlock) removed() kvevent.RouterEvent {
	h := b.hash
	if b.group != 0 {
		h = b.named
	}
	return kvevent.RouterEvent{Kind: kvevent.Removed, Tier: b.tier, Group: b.group, Removed: []kv.SequenceHash{h}}
}
