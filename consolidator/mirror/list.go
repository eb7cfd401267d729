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

// listGrace is how long after the rank has caught up with the engine's list a store
// may still be one that the list includes.
const listGrace = time.Second

// blocksPerHold is how many blocks change under one hold of the stream's lock, where a
// change concerns all blocks: less than a millisecond.
const blocksPerHold = 512

// hidden is what a rank knew before a loss for which there was no list. Any of it may
// be gone, so it is out of the stream until the list comes. Only blocks on the device
// count: a list says nothing about others.
type hidden struct {
	known  dense.Table[engineBlock]     // their slots are those of blocks
	blocks dense.Table[residency.Block] // their references mean nothing
}

// WantsList reports whether the engine should be asked for its list, and can be heard:
// what the engine says after the list must not be missed.
func (c *Cache) WantsList() bool { return c.wantList && !c.unreached }

// mayBeListed reports whether a store in tier t that comes now may be one that the
// engine's last list includes.
func (c *Cache) mayBeListed(t kv.Tier) bool {
	return t == kv.TierDevice && (c.queuePredatesList || !c.listedUntil.IsZero() && c.cfg.Now().Before(c.listedUntil))
}

// storeMayBeListed takes the blocks of a stored event out of those that only the list
// has told of, and reports what mayBeListed does.
func (c *Cache) storeMayBeListed(e *engineevent.Event, t kv.Tier) bool {
	if t == kv.TierDevice && c.unannounced != nil {
		for _, h := range e.BlockHashes {
			c.announced(h)
		}
	}
	return c.mayBeListed(t)
}

// CaughtUp says that the queue of frames was empty. Later frames were sent after the
// list came, but for those under way.
func (c *Cache) CaughtUp() {
	if c.queuePredatesList {
		c.queuePredatesList, c.listedUntil = false, c.cfg.Now().Add(listGrace)
	}
}

// announced takes h out of the blocks of which only the engine's list has told; false
// when h was not among them.
func (c *Cache) announced(h kv.EngineHash) bool {
	if len(c.unannounced) == 0 {
		return false
	}
	_, ok := c.unannounced[h]
	delete(c.unannounced, h)
	if len(c.unannounced) == 0 {
		c.unannounced = nil // a map does not shrink
	}
	return ok
}

// Listed makes up for a loss with the list of the blocks that the engine has on its
// device. Known, hidden and parked blocks on the list stay, with one announcement each;
// all others go. The list does not say how often a block was announced: to forget it
// too early is a miss, and too late would be a wrong hit. Listed blocks that are
// unknown leave the stream degraded until the engine announces or removes them.
//
// The stream's lock is released many times in between. What observers see then is
// never worse than what they saw before: a block that was there and has not been
// checked, or a part of the hidden and parked blocks on the list. The health changes
// with the last step.
func (c *Cache) Listed(list []kv.EngineHash) {
	c.unannounced = make(map[kv.EngineHash]struct{}, len(list))
	for _, h := range list {
		c.unannounced[h] = struct{}{}
	}
	c.queuePredatesList, c.wantList = true, false
	c.park.keepListed(c.unannounced)
	c.keepListed()
	c.showListed()
	for _, k := range slices.Collect(maps.Keys(c.park.byBlock)) {
		c.parkOnce(k)
		c.announced(k.hash)
	}
	for len(c.parents) > 0 {
		c.stream.Update(c.storeChildren)
	}
	c.unannounced = maps.Collect(maps.All(c.unannounced)) // most of it is gone, and a map does not shrink
	// The list says nothing about other tiers.
	c.degraded, c.unconfirmed = c.lowerTiers, false
	c.version++
	c.stream.Update(c.updateHealth)
}

// keepListed forgets the known blocks that are not listed, and all but one
// announcement of the others.
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

// keepIfListed leaves the known block in a slot one announcement if it is listed, else
// none.
func (c *Cache) keepIfListed(tx *residency.Tx, slot uint32) {
	b := c.known.At(slot)
	if b.refs == 0 {
		return // a free slot
	}
	keep := uint32(0)
	if b.refs.Of(kv.TierDevice) > 0 && c.announced(kv.EngineHash(c.known.Key(slot))) {
		keep = 1
	}
	refs := b.refs
	for _, t := range kv.Tiers {
		c.release(tx, slot, t, refs.Of(t)-keep)
		keep = 0
	}
}

// showListed stores the hidden blocks that are listed, and forgets the others.
func (c *Cache) showListed() {
	if c.hidden == nil {
		return
	}
	var listed []placedBlock
	for slot := range c.hidden.known.Slots() {
		b := c.hidden.known.At(slot)
		h := kv.EngineHash(c.hidden.known.Key(slot))
		if b.refs.Of(kv.TierDevice) == 0 || !c.announced(h) {
			continue
		}
		at := *c.hidden.blocks.At(b.slot)
		at.Refs = 0
		at.Refs.Add(kv.TierDevice)
		listed = append(listed, placedBlock{hash: h, seq: kv.SequenceHash(c.hidden.blocks.Key(b.slot)), at: at, name: b.name})
	}
	c.storePlaced(listed)
	c.dropHidden()
	for i := range listed {
		b := &listed[i]
		if c.park.waitsFor(b.hash) {
			c.parents = append(c.parents, parent{b.hash, b.seq, b.at.Position() + 1, b.name})
		}
	}
}

// Hide takes every block out of the stream, because events are missing that may have
// removed any of them. The blocks stay hidden until there is a list.
func (c *Cache) Hide() {
	c.degraded, c.unconfirmed, c.wantList = true, false, true
	c.park.reset()
	c.unannounced = nil
	c.version++
	var table dense.Table[residency.Block]
	c.stream.Update(func(tx *residency.Tx) {
		table = tx.Clear()
		c.updateHealth(tx)
	})
	c.hideKnown(table)
	c.stream.Update(c.updateHealth) // with the counters as they are now
}

// hideKnown moves the known blocks to those that are hidden already. The table was the
// stream's.
func (c *Cache) hideKnown(table dense.Table[residency.Block]) {
	if c.hidden == nil {
		c.hidden = &hidden{known: c.known, blocks: table}
		c.known = dense.Table[engineBlock]{}
		return
	}
	for slot := range c.known.Slots() {
		if b := *c.known.At(slot); b.refs != 0 && !c.hideBlock(c.known.Key(slot), b, &table) {
			c.names.leave(b.name)
		}
	}
	c.known.Clear()
}

// hideBlock hides one block more; false when it is hidden already, or there is no
// room.
func (c *Cache) hideBlock(h uint64, b engineBlock, table *dense.Table[residency.Block]) bool {
	if old, there := c.hidden.known.Find(h); there {
		c.hidden.known.At(old).refs |= b.refs
		return false
	}
	if c.hidden.known.Len() >= c.cfg.MaxBlocks {
		c.drop(dropTableFull, 1)
		return false
	}
	seq := table.Key(b.slot)
	at, there := c.hidden.blocks.Find(seq)
	if !there {
		if at, there = c.hidden.blocks.Insert(seq); !there {
			c.drop(dropTableFull, 1)
			return false
		}
		*c.hidden.blocks.At(at) = *table.At(b.slot)
	}
	slot, ok := c.hidden.known.Insert(h)
	if !ok {
		c.drop(dropTableFull, 1)
		return false
	}
	b.slot = at
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
			c.names.leave(b.name)
		}
	}
	c.hidden = nil
}
