package mirror

import (
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Apply applies one batch in one transaction of the stream. Events that cannot be used are
// counted by reason: see Counters.Dropped. b is lent.
func (c *Cache) Apply(b *engineevent.Batch) {
	c.learnGroups(b)
	c.stream.Update(func(tx *residency.Tx) { c.applyBatch(tx, b) })
}

// applyBatch applies the events of b in order, and then updates the stream's health: degraded
// while the mirror may differ from the engine.
func (c *Cache) applyBatch(tx *residency.Tx, b *engineevent.Batch) {
	c.count.Batches.Add(1)
	c.count.UnknownKeys.Add(uint64(b.UnknownKeys))
	for i := range b.Events {
		e := &b.Events[i]
		c.count.Events.Add(1)
		c.count.Blocks.Add(uint64(len(e.BlockHashes)))
		if b.HasRank && b.Rank != c.cfg.Rank {
			c.drop(dropForeignRank, max(1, len(e.BlockHashes)))
			continue
		}
		c.applyEvent(tx, e)
	}
	if len(b.Bad) > 0 {
		// An unreadable event has no known position in the batch. So even a Cleared event of
		// this batch does not make up for the loss: the unreadable event may be later. The
		// engine's list of its blocks does.
		c.degraded, c.wantList = true, c.wantList || c.cfg.CanList
	}
	c.unconfirmed, c.unreached = false, false // a batch shows that the same engine answers
	c.version++                               // a checkpoint is due
	c.updateHealth(tx)
}

// applyEvent applies one event, or counts the blocks that it drops, by reason. After a stored
// event it also stores the parked events whose parents have become known.
func (c *Cache) applyEvent(tx *residency.Tx, e *engineevent.Event) {
	if e.Ownership != "" && e.Ownership != "framework" { // not the engine's own blocks
		c.drop(dropOwnership, max(1, len(e.BlockHashes)))
		return
	}
	if e.Kind == kvevent.Cleared {
		c.clearDevice(tx)
		return
	}
	tier, group, reason, ok := c.filter(e)
	switch {
	case !ok:
		c.drop(reason, len(e.BlockHashes))
	case e.Kind == kvevent.Stored && group != 0:
		c.storeSparse(tx, e, tier, group)
	case e.Kind == kvevent.Stored:
		c.store(tx, e, tier)
		c.storeParked(tx)
	case group != 0:
		c.removeSparse(tx, e.BlockHashes, tier, group)
	default:
		c.remove(tx, e.BlockHashes, tier)
	}
}

// run is a stored event while storeRun walks its blocks, with the place of the next block.
type run struct {
	event *engineevent.Event
	tier  kv.Tier
	// nameID is the number of the LoRA adapter and salt in Cache.names; 0: neither.
	nameID uint32
	// hasParent: parent and position are those of the next block. root: the next block
	// starts a sequence. If both are false, the parent is unknown but the first block is
	// known, and so is the position.
	parent    kv.SequenceHash
	position  uint32
	hasParent bool
	root      bool
	// repeats: the event may repeat earlier announcements. Then a block that the engine has
	// in the tier already does not count as another copy.
	repeats bool
	// parked is the parked run that the event comes from; nil: the event has just come.
	parked *parkedRun
}

// store applies a stored event of blocks in tier t. It parks the event, to be stored once its
// parent is known, if neither the parent nor the first block is known: the SequenceHash of a
// block needs one of the two.
func (c *Cache) store(tx *residency.Tx, e *engineevent.Event, t kv.Tier) {
	n := len(e.BlockHashes)
	if n == 0 {
		return
	}
	c.takeAnnounced(e, t)
	// A full cache report announces the whole prefix of a request, from its root.
	mayBeReport := c.cfg.FullReports && !e.HasParent && n > 1
	// Repeated blocks must not count as another copy.
	r := run{event: e, tier: t, root: !e.HasParent, repeats: c.mayBeListed(t) || mayBeReport}
	if e.HasParent {
		if slot, ok := c.known.Find(uint64(e.Parent)); ok {
			b := c.known.At(slot)
			r.parent, r.position = tx.Hash(b.slot), tx.Block(b.slot).Position()+1
			r.hasParent, r.nameID = true, b.nameID
		} else if _, ok := c.known.Find(uint64(e.BlockHashes[0])); !ok {
			c.parkEvent(e, t)
			return
		}
	}
	c.storeRun(tx, &r)
}

// storeRun stores the blocks of a run, a stored event whose parent or first block is known. The
// first block that cannot be stored ends the run, because the blocks after it are its
// descendants.
//
// All blocks of a sequence have one name: its LoRA adapter and its salt. vLLM gives the salt
// with the first block only. So r.nameID is the known parent's. An event whose salt differs
// from that name is dropped.
func (c *Cache) storeRun(tx *residency.Tx, r *run) {
	e := r.event
	if !r.hasParent || e.Salt != "" {
		number, ok := c.names.number(name{e.LoRAName, e.Salt})
		if !ok {
			c.drop(dropNamesFull, len(e.BlockHashes))
			return
		}
		defer c.names.freeUnused(number) // if no block of the run is stored
		if r.hasParent && number != r.nameID {
			c.drop(dropSaltConflict, len(e.BlockHashes))
			return
		}
		r.nameID = number
	}
	for i := range e.BlockHashes {
		if reason, ok := c.storeBlock(tx, r, i); !ok {
			c.drop(reason, len(e.BlockHashes)-i)
			return
		}
	}
}

// storeBlock stores block i of a run, and makes the block the run's parent for the next call. ok
// is false when the block cannot be stored; reason says why.
//
// The block's engine hash may be known from an earlier event. Then the tokens, adapter and salt
// must give the SequenceHash that the stream has, or the two events contradict each other.
func (c *Cache) storeBlock(tx *residency.Tx, r *run, i int) (reason dropReason, ok bool) {
	h := r.event.BlockHashes[i]
	slot, known := c.known.Find(uint64(h))
	var b engineBlock
	if known {
		b = *c.known.At(slot)
		if r.root && r.nameID != 0 && r.nameID != b.nameID {
			return dropSaltConflict, false
		}
		r.nameID = b.nameID // an event inside a sequence does not repeat the salt
	}
	blockTokens := kv.BlockTokens(r.event.Tokens, i, c.cfg.BlockSize, r.event.Eagle)
	local := c.hasher.Local(blockTokens, c.names.list[r.nameID].seed, blockObjects(r.event, i))
	seq, position := kv.SequenceHash(local), uint32(0)
	switch {
	case r.hasParent:
		seq, position = kv.Chain(r.parent, local), r.position
	case known && !r.root:
		// The event's parent is unknown, the block is not: its hash and position stay.
		seq, position = tx.Hash(b.slot), tx.Block(b.slot).Position()
	}
	if known && seq != tx.Hash(b.slot) {
		return dropHashConflict, false
	}
	block := residency.NewBlock(r.parent, r.hasParent, position, local)
	switch {
	case r.parked != nil && r.parked.isRemoved(i):
		// The engine removed the block while it was parked.
	case known && b.refs.Of(r.tier) > 0:
		c.countCopy(slot, r)
	case known:
		c.known.At(slot).refs.Add(r.tier)
		tx.Store(r.tier, seq, block)
	default:
		if !c.storeNew(tx, h, seq, block, r) {
			return dropTableFull, false
		}
		c.sendTokens(seq, blockTokens, r, i)
	}
	c.placeWaiting(tx, h, seq)
	r.parent, r.position, r.hasParent, r.root = seq, position+1, true, false
	if c.park.waitsForParent(h) { // the caller stores the parked children afterwards
		c.foundParents = append(c.foundParents, foundParent{h, seq, r.position, r.nameID})
	}
	return 0, true
}

// sendTokens passes the tokens of block i of a run to the token sink, if there is one.
func (c *Cache) sendTokens(seq kv.SequenceHash, blockTokens []uint32, r *run, i int) {
	if c.cfg.Tokens == nil {
		return
	}
	n := &c.names.list[r.nameID]
	c.cfg.Tokens.BlockTokens(seq, blockTokens, tokens.Identity{
		LoRAName: n.lora, Salt: n.salt, BlockSize: uint32(c.cfg.BlockSize), Objects: blockObjects(r.event, i),
	})
}

// countCopy counts one more copy of the known block in a slot. The engine has the block in
// the run's tier already.
func (c *Cache) countCopy(slot uint32, r *run) {
	switch {
	case r.repeats:
		c.count.Reannounced.Add(1)
	case !c.known.At(slot).refs.Add(r.tier):
		// The count is at its limit. The mirror will remove the block before the engine
		// removes its last copy. The engine's list corrects that.
		c.drop(dropTooManyCopies, 1)
		c.wantList = c.wantList || c.cfg.CanList
	}
}

// storeNew stores a block of a run whose engine hash h is not known yet, in the stream and in the
// table of known blocks. It returns false when a table is full; then nothing has changed.
func (c *Cache) storeNew(tx *residency.Tx, h kv.EngineHash, seq kv.SequenceHash, block residency.Block, r *run) bool {
	if c.tableFull() {
		return false
	}
	slot, ok := tx.Store(r.tier, seq, block)
	if !ok {
		return false
	}
	b := engineBlock{slot: slot, nameID: r.nameID}
	b.refs.Add(r.tier)
	if !c.addKnown(h, b) {
		tx.DropRef(r.tier, slot) // undo tx.Store
		return false
	}
	return true
}

// addKnown adds an engine block to the table of known blocks. It returns false when the
// table is full.
func (c *Cache) addKnown(h kv.EngineHash, b engineBlock) bool {
	slot, ok := c.known.Insert(uint64(h))
	if !ok {
		return false
	}
	*c.known.At(slot) = b
	c.names.retain(b.nameID)
	return true
}

// remove takes back one announcement of each of hashes in tier t: of a known block, of a parked
// one (its parent is unknown), or of one that only the engine's list has named. An announcement
// counts one copy of the block in the engine. Other hashes are counted as unknown blocks.
func (c *Cache) remove(tx *residency.Tx, hashes []kv.EngineHash, t kv.Tier) {
	for _, h := range hashes {
		slot, ok := c.known.Find(uint64(h))
		switch {
		case ok && c.known.At(slot).refs.Of(t) > 0:
			c.release(tx, slot, t, 1)
		case c.park.remove(h, t):
		case t == kv.TierDevice && c.takeOnlyListed(h): // a list has device blocks only
		default:
			c.drop(dropUnknownBlock, 1)
		}
	}
}

// clearDevice applies the engine's AllBlocksCleared: the device cache is empty. Blocks in
// other tiers stay.
func (c *Cache) clearDevice(tx *residency.Tx) {
	for slot := range c.known.Slots() {
		c.release(tx, slot, kv.TierDevice, c.known.At(slot).refs.Of(kv.TierDevice))
	}
	c.clearSparse(tx, kv.TierDevice)
	c.park.clearTier(kv.TierDevice)
	c.onlyListed, c.wantList = nil, false // an older list is void
	c.dropHidden()
	if !c.lowerTiers { // nothing is cached anywhere, so no earlier loss matters
		c.degraded, c.sparse.lost = false, false
	}
}

// release takes back n references (announced copies) in tier t of the known block in a slot, or
// all of them if there are fewer than n. With its last reference in t the block leaves t in the
// stream. With its last reference in any tier the block is forgotten.
func (c *Cache) release(tx *residency.Tx, slot uint32, t kv.Tier, n uint32) {
	b := c.known.At(slot)
	left := b.refs.Of(t) - min(n, b.refs.Of(t))
	if left == b.refs.Of(t) { // no reference in t: DropRef would count an unknown block
		return
	}
	b.refs.Set(t, left)
	if left > 0 {
		return
	}
	tx.DropRef(t, b.slot) // the stream counts each engine block once in a tier
	if b.refs == 0 {
		c.names.release(b.nameID)
		c.known.Remove(slot)
	}
}
