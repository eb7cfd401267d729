package mirror

import (
	"maps"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// listGrace is the time after CaughtUp in which a stored event may still be about a block that
// the engine's list includes.
const listGrace = time.Second

// blocksPerHold bounds the blocks that a change of all blocks changes while it holds the
// stream's lock: less than a millisecond.
const blocksPerHold = 512

// hidden holds the blocks that were known before a loss for which there was no list. The
// engine may have removed any of them, so they are not in the stream until the list comes.
// Only device blocks can come back: a list has no others.
type hidden struct {
	known  dense.Table[engineBlock]     // engineBlock.slot is a slot of blocks
	blocks dense.Table[residency.Block] // Block.Refs has no meaning here
}

// WantsList reports whether the caller should ask the engine for its list. It returns false
// while the engine's events are unreachable: the events after the list must not be missed.
func (c *Cache) WantsList() bool { return c.wantList && !c.unreached }

// mayBeListed reports whether a stored event that arrives now for tier t may be about
// blocks that the engine's last list includes.
func (c *Cache) mayBeListed(t kv.Tier) bool {
	return t == kv.TierDevice && (c.queuePredatesList || !c.listedUntil.IsZero() && c.cfg.Now().Before(c.listedUntil))
}

// takeAnnounced removes the blocks of a stored event from c.onlyListed, the listed blocks
// that no event has announced.
func (c *Cache) takeAnnounced(e *engineevent.Event, t kv.Tier) {
	if t == kv.TierDevice && c.onlyListed != nil {
		for _, h := range e.BlockHashes {
			c.takeOnlyListed(h)
		}
	}
}

// CaughtUp tells the mirror that the queue of frames is empty. The engine sent later frames
// after the list, except frames that are in flight: see listGrace.
func (c *Cache) CaughtUp() {
	if c.queuePredatesList {
		c.queuePredatesList, c.listedUntil = false, c.cfg.Now().Add(listGrace)
	}
}

// takeOnlyListed removes h from c.onlyListed, the listed blocks that no event has announced,
// and reports whether h was there.
func (c *Cache) takeOnlyListed(h kv.EngineHash) bool {
	if len(c.onlyListed) == 0 {
		return false
	}
	_, ok := c.onlyListed[h]
	delete(c.onlyListed, h)
	if len(c.onlyListed) == 0 {
		c.onlyListed = nil // a map does not shrink
	}
	return ok
}

// Listed repairs a loss of events with the list of the blocks that the engine has on its device.
// Known blocks, hidden ones (known before the loss) and parked ones (their parent is unknown)
// stay if they are on the list, with one announcement each; all others are forgotten. The list
// does not say how often a block was announced. One announcement is
// the safe count: to forget a block too early costs a miss, too late a wrong hit. Listed
// blocks that are unknown keep the stream degraded until the engine announces or removes
// them.
//
// The list is about the primary KV group. All blocks of other groups are forgotten, and the
// stream stays degraded until the engine clears its device.
//
// Listed releases the stream's lock many times. Meanwhile observers see blocks that are not
// checked yet, and a part of the listed hidden and parked blocks. Both is no worse than
// before Listed. The health changes with the last step.
func (c *Cache) Listed(list []kv.EngineHash) {
	c.onlyListed = make(map[kv.EngineHash]struct{}, len(list))
	for _, h := range list {
		c.onlyListed[h] = struct{}{}
	}
	c.queuePredatesList, c.wantList = true, false
	c.releaseSparse() // a list does not say in which groups a block is
	// Each step takes the blocks that it finds from onlyListed: in the end only the unknown stay.
	c.park.keepListed(c.onlyListed)
	c.keepListed()
	c.restoreListed()
	for _, k := range slices.Collect(maps.Keys(c.park.byBlock)) {
		c.keepOneAnnouncement(k)
		c.takeOnlyListed(k.hash)
	}
	for len(c.foundParents) > 0 {
		c.stream.Update(c.storeChildren)
	}
	c.onlyListed = maps.Collect(maps.All(c.onlyListed)) // a smaller map: most keys are deleted, and a map does not shrink
	// The list does not repair other tiers and groups, if the engine has any.
	c.degraded, c.unconfirmed = c.lowerTiers || c.sparse.lost, false
	c.version++
	c.stream.Update(c.updateHealth)
}

// keepListed forgets the known blocks that are not on the list, and all but one
// announcement of the listed ones.
func (c *Cache) keepListed() {
	end := c.known.Slots()
	for from := uint32(0); from < end; from += blocksPerHold {
		c.stream.Update(func(tx *residency.Tx) {
			for slot := from; slot < min(from+blocksPerHold, end); slot++ {
				c.keepIfListed(tx, slot)
			}
		})
	}
}

// keepIfListed keeps one announcement of the known block in a slot if the block is on the
// engine's list, which Listed has put into c.onlyListed. Otherwise it forgets the block.
func (c *Cache) keepIfListed(tx *residency.Tx, slot uint32) {
	b := c.known.At(slot)
	if b.refs == 0 {
		return // a free slot
	}
	keep := uint32(0)
	if b.refs.Of(kv.TierDevice) > 0 && c.takeOnlyListed(kv.EngineHash(c.known.Key(slot))) {
		keep = 1
	}
	refs := b.refs // release changes b, and may free it
	for _, t := range kv.Tiers {
		c.release(tx, slot, t, refs.Of(t)-keep)
		keep = 0 // kept in the device, the first tier; a list has no other
	}
}

// restoreListed stores the hidden blocks, those known before the loss of events, that are on the
// engine's list. It forgets all other hidden blocks. Listed has put the list into c.onlyListed.
func (c *Cache) restoreListed() {
	if c.hidden == nil {
		return
	}
	var listed []placedBlock
	for slot := range c.hidden.known.Slots() {
		b := c.hidden.known.At(slot)
		h := kv.EngineHash(c.hidden.known.Key(slot))
		if b.refs.Of(kv.TierDevice) == 0 || !c.takeOnlyListed(h) {
			continue
		}
		at := *c.hidden.blocks.At(b.slot)
		at.Refs = 0
		at.Refs.Add(kv.TierDevice) // one copy: a list has device blocks only, and no counts
		listed = append(listed, placedBlock{hash: h, seq: kv.SequenceHash(c.hidden.blocks.Key(b.slot)), at: at, nameID: b.nameID})
	}
	c.storePlaced(listed)
	c.dropHidden()
	for i := range listed {
		b := &listed[i]
		if c.park.waitsForParent(b.hash) { // Listed stores the parked children afterwards
			c.foundParents = append(c.foundParents, foundParent{b.hash, b.seq, b.at.Position() + 1, b.nameID})
		}
	}
}

// Hide removes every block from the stream after a loss of events: the missing events may have
// removed any of them. The blocks stay hidden, outside of the stream, until the engine lists its
// blocks: those on the list come back with Listed.
func (c *Cache) Hide() {
	c.degraded, c.unconfirmed, c.wantList = true, false, true
	c.park.reset() // the missing events may have removed parked blocks too
	c.forgetSparse()
	c.onlyListed = nil
	c.version++
	var table dense.Table[residency.Block]
	c.stream.Update(func(tx *residency.Tx) {
		table = tx.Clear()
		c.updateHealth(tx)
	})
	c.hideKnown(table)
	c.stream.Update(c.updateHealth) // hideKnown changed the counters and c.degraded
}

// hideKnown moves the known blocks to c.hidden, where they wait for the engine's list. c.hidden
// may have blocks from an earlier loss. streamBlocks are the blocks that the stream held.
func (c *Cache) hideKnown(streamBlocks dense.Table[residency.Block]) {
	if c.hidden == nil { // both tables move as they are
		c.hidden = &hidden{known: c.known, blocks: streamBlocks}
		c.known = dense.Table[engineBlock]{}
		return
	}
	for slot := range c.known.Slots() {
		if b := *c.known.At(slot); b.refs != 0 && !c.hideOne(c.known.Key(slot), b, &streamBlocks) {
			c.names.release(b.nameID) // a hidden block keeps its name
		}
	}
	c.known.Clear()
}

// hideOne adds the known block b with engine hash h to c.hidden, where it waits for the engine's
// list. streamBlocks are the blocks that the stream had; b.slot is a slot of it. hideOne returns
// false when the block is hidden already, or when a table is full.
//
// c.hidden has two tables: known has the block by its engine hash, and blocks has the block's
// parent and position by its SequenceHash. Several engine hashes may have one SequenceHash.
func (c *Cache) hideOne(h uint64, b engineBlock, streamBlocks *dense.Table[residency.Block]) bool {
	if old, there := c.hidden.known.Find(h); there {
		c.hidden.known.At(old).refs |= b.refs // only zero or not matters: a list restores one copy
		return false
	}
	if c.hidden.known.Len() >= c.cfg.MaxBlocks {
		c.drop(dropTableFull, 1)
		return false
	}
	seq := streamBlocks.Key(b.slot)
	hiddenSlot, there := c.hidden.blocks.Find(seq)
	if !there {
		if hiddenSlot, there = c.hidden.blocks.Insert(seq); !there {
			c.drop(dropTableFull, 1)
			return false
		}
		*c.hidden.blocks.At(hiddenSlot) = *streamBlocks.At(b.slot)
	}
	slot, ok := c.hidden.known.Insert(h)
	if !ok {
		c.drop(dropTableFull, 1)
		return false
	}
	b.slot = hiddenSlot
	*c.hidden.known.At(slot) = b
	return true
}

// dropHidden forgets the hidden blocks.
func (c *Cache) dropHidden() {
	if c.hidden == nil {
		return
	}
	for slot := range c.hidden.known.Slots() {
		if b := c.hidden.known.At(slot); b.refs != 0 {
			c.names.release(b.nameID)
		}
	}
	c.hidden = nil
}
