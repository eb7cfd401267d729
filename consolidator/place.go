package consolidator

import (
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// storing is the place of the next block of a stored event.
type storing struct {
	tier     kv.Tier
	identity uint32
	// parent is the block before and position that of the next block, when there is
	// one that is known; root says that there is none.
	parent    kv.SequenceHash
	position  uint32
	hasParent bool
	root      bool
	// recount: what is Block in the tier is not counted again, because the event
	// may only repeat what was said before; see the package comment.
	recount bool
	// parked is the parked run that the event is; nil: it has just come.
	parked *parkedRun
}

// readyPlace is a block whose parked children can be stored.
type readyPlace struct {
	hash     kv.EngineHash
	seq      kv.SequenceHash
	position uint32 // of the children
	identity uint32
}

// store applies a stored event that passed the filters.
func (c *converter) store(tx *residency.Tx, e *engineevent.Event, t kv.Tier) {
	n := len(e.BlockHashes)
	if reason, bad := c.malformed(e); bad {
		c.drop(reason, n)
		return
	}
	if n == 0 {
		return
	}
	at := storing{tier: t, root: !e.HasParent, recount: c.inList(t) || c.fullReports && !e.HasParent && n > 1}
	if t == kv.TierDevice {
		for _, h := range e.BlockHashes {
			c.unlist(h)
		}
	}
	if e.HasParent {
		if slot, ok := c.known.Find(uint64(e.Parent)); ok {
			parent := *c.known.At(slot)
			at.parent, at.position = tx.Hash(parent.slot), tx.Block(parent.slot).Position()+1
			at.hasParent, at.identity = true, parent.identity
		} else if _, ok := c.known.Find(uint64(e.BlockHashes[0])); !ok {
			c.parkRun(e, t)
			return
		}
	}
	c.storeRun(tx, e, &at)
}

// storeRun stores the blocks of e from the place that at describes on. The first
// block that cannot be placed ends it, because the blocks after it hang on it.
//
// A sequence has one LoRA adapter and one salt, and vLLM names the salt at the
// first block only: with a known parent its identity holds, and a salt that
// contradicts it is refused.
func (c *converter) storeRun(tx *residency.Tx, e *engineevent.Event, at *storing) {
	if !at.hasParent || e.Salt != "" {
		own, ok := c.identities.number(identityName{e.LoRAName, e.Salt})
		if !ok {
			c.drop(dropNamesFull, len(e.BlockHashes))
			return
		}
		defer c.identities.settle(own)
		if at.hasParent && own != at.identity {
			c.drop(dropSaltConflict, len(e.BlockHashes))
			return
		}
		at.identity = own
	}
	for i := range e.BlockHashes {
		if reason, ok := c.place(tx, e, i, at); !ok {
			c.drop(reason, len(e.BlockHashes)-i)
			return
		}
	}
}

// place stores block i of e at the place that at describes, and moves at on to
// the next block. A false result means that it was not stored, and why.
func (c *converter) place(tx *residency.Tx, e *engineevent.Event, i int, at *storing) (dropReason, bool) {
	h := e.BlockHashes[i]
	slot, known := c.known.Find(uint64(h))
	var was engineBlock
	if known {
		was = *c.known.At(slot)
		if at.root && at.identity != 0 && at.identity != was.identity {
			return dropSaltConflict, false
		}
		at.identity = was.identity
	}
	tokens := kv.BlockTokens(e.Tokens, i, c.blockSize, e.Eagle)
	local := c.hasher.Local(tokens, c.identities.list[at.identity].seed, blockObjects(e, i))
	seq, position := kv.SequenceHash(local), uint32(0)
	if at.hasParent {
		seq, position = kv.Chain(at.parent, local), at.position
	}
	if known {
		is := tx.Hash(was.slot)
		if !at.hasParent && !at.root {
			seq, position = is, tx.Block(was.slot).Position()
		}
		if seq != is {
			return dropHashConflict, false
		}
	}
	b := residency.Block{}
	if !known || was.refs.Of(at.tier) == 0 {
		b = residency.NewBlock(at.parent, at.hasParent, position, local)
	}
	switch {
	case at.parked != nil && at.parked.isGone(i):
	case known && was.refs.Of(at.tier) > 0:
		c.countAgain(slot, at)
	case known:
		c.known.At(slot).refs.Add(at.tier)
		tx.Store(at.tier, seq, b)
	case !c.placeNew(tx, h, seq, b, at):
		return dropTableFull, false
	default:
		c.tell(seq, tokens, e, i, at)
	}
	at.parent, at.position, at.hasParent, at.root = seq, position+1, true, false
	if c.park.waitsFor(h) {
		c.ready = append(c.ready, readyPlace{h, seq, at.position, at.identity})
	}
	return 0, true
}

// countAgain counts one more copy of the known block in a slot, which the engine has
// in that tier already.
func (c *converter) countAgain(slot uint32, at *storing) {
	switch {
	case at.recount:
		c.count.reannounced.Add(1)
	case !c.known.At(slot).refs.Add(at.tier):
		// The block will be removed before its last copy: a miss. The list tells.
		c.drop(dropTooManyCopies, 1)
		c.wantList = c.wantList || c.canList
	}
}

// placeNew makes a block known; false when a table is full.
func (c *converter) placeNew(tx *residency.Tx, h kv.EngineHash, seq kv.SequenceHash, r residency.Block, at *storing) bool {
	if c.known.Len() >= c.maxBlocks {
		return false
	}
	slot, ok := tx.Store(at.tier, seq, r)
	if !ok {
		return false
	}
	b := engineBlock{slot: slot, identity: at.identity}
	b.refs.Add(at.tier)
	if !c.learn(h, b) {
		tx.DropRef(at.tier, slot)
		return false
	}
	return true
}

// tell tells the token sink about block i of e, which has become known.
func (c *converter) tell(seq kv.SequenceHash, words []uint32, e *engineevent.Event, i int, at *storing) {
	if c.tokens == nil {
		return
	}
	id := &c.identities.list[at.identity]
	c.tokens.BlockTokens(seq, words, tokens.Identity{
		LoRAName: id.lora, Salt: id.salt, BlockSize: uint32(c.blockSize), Objects: blockObjects(e, i),
	})
}

// parkRun keeps a stored event until its parent is known.
func (c *converter) parkRun(e *engineevent.Event, t kv.Tier) {
	c.count.parked.Add(uint64(len(e.BlockHashes)))
	for _, r := range c.park.add(newParkedRun(e, t, c.now())) {
		c.count.parkOverflow.Add(uint64(r.left))
		c.drop(dropUnknownParent, r.left)
	}
	if c.inList(t) {
		for _, h := range e.BlockHashes {
			c.parkOnce(parkedBlock{t, h})
		}
	}
}

// parkOnce leaves k one announcement, here or in the stream.
func (c *converter) parkOnce(k parkedBlock) {
	keep := 1
	if slot, ok := c.known.Find(uint64(k.hash)); ok && c.known.At(slot).refs.Of(k.tier) > 0 {
		keep = 0
	}
	c.park.reduce(k, keep)
}

// splice stores the parked runs whose parents are known by now.
func (c *converter) splice(tx *residency.Tx) {
	for len(c.ready) > 0 {
		p := c.ready[len(c.ready)-1]
		c.ready = c.ready[:len(c.ready)-1]
		for _, r := range c.park.takeChildren(p.hash) {
			c.count.spliced.Add(uint64(r.left))
			c.storeRun(tx, &r.event, &storing{
				tier: r.tier, identity: p.identity, parent: p.seq, position: p.position, hasParent: true, parked: r,
				recount: c.inList(r.tier),
			})
		}
	}
}
