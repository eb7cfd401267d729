package mirror

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// maxWaiting bounds the announcements of blocks that wait for their place.
const maxWaiting = 64 << 10

// sparse has the blocks of other KV groups than the primary one. An engine announces such a block
// under the hash of the primary group's block that ends there. That block gives it its name: an
// event of a window or a state lacks the tokens before it, and may have blocks left out.
type sparse struct {
	// engine are the groups by the engine's numbers, empty when they are unknown. numbers has the
	// number in our events of each of them.
	engine  kvgroup.Groups
	numbers []uint32
	// known has the announced blocks by sparseKey. engineBlock.slot is the slot of the group's
	// block in the stream; nameID has no meaning.
	known dense.Table[engineBlock]
	// waiting has the announcements of blocks whose primary block is unknown, by the engine's hash.
	// waits is their number, and since when there are any.
	waiting map[kv.EngineHash][]waitingBlock
	waits   int
	since   time.Time
	// unplaced: a block of the primary group is larger than a block of the stream, so that no block of
	// it has a name.
	unplaced bool
	// lost: blocks were forgotten that the engine may have, and that no list brings back.
	lost bool
}

// waitingBlock is one announcement of a block of a group in a tier.
type waitingBlock struct {
	group uint32
	tier  kv.Tier
}

func newSparse(engine kvgroup.Groups, blockSize int) sparse {
	_, numbers := kvevent.NewGroups(engine)
	return sparse{
		engine: engine, numbers: numbers, waiting: make(map[kv.EngineHash][]waitingBlock),
		unplaced: len(engine) > 0 && int64(engine[engine.Primary()].BlockSize) != int64(blockSize),
	}
}

// configured reports whether the engine's groups are known.
func (s *sparse) configured() bool { return len(s.engine) > 0 }

// groupOf returns the number in our events of the group that e is about. It returns false for a
// group that the engine does not have, and for one of another kind than e names.
func (s *sparse) groupOf(e *engineevent.Event) (group uint32, ok bool) {
	switch {
	case e.Group == engineevent.NoGroup:
		return 0, true
	case int(e.Group) >= len(s.engine):
		return 0, false
	case e.SpecKind != "" && isMainAttention(e.SpecKind) != (s.engine[e.Group].Kind == kvgroup.Full):
		return 0, false
	}
	return s.numbers[e.Group], true
}

// sparseKey returns the key of an engine's block of a group.
func sparseKey(h kv.EngineHash, group uint32) uint64 {
	return uint64(kv.InGroup(kv.SequenceHash(h), group))
}

// overdueAt returns when blocks will have waited too long for their place; zero when none waits.
func (s *sparse) overdueAt() time.Time {
	if s.waits == 0 {
		return time.Time{}
	}
	return s.since.Add(parkPatience)
}

// malformedSparse returns true when a stored event of another group than the primary one cannot be
// applied. Its tokens do not add up, because blocks may be left out. A state at the end of a prompt
// comes with the size of a chain block.
func (c *Cache) malformedSparse(e *engineevent.Event, group uint32) (dropReason, bool) {
	size := c.sparse.engine[slices.Index(c.sparse.numbers, group)].BlockSize
	switch {
	case len(e.Tokens) == 0 && e.BlockSize == 0:
		return dropPlaceholder, true
	case e.BlockSize != size && int64(e.BlockSize) != int64(c.cfg.BlockSize):
		return dropBlockSize, true
	case c.cfg.FullReports && !e.HasParent && len(e.Tokens) == len(e.BlockHashes)*int(e.BlockSize):
		// A full report names all blocks of a prefix, those that the group does not have included.
		return dropGroupReport, true
	}
	return 0, false
}

// storeSparse applies a stored event of another group than the primary one.
func (c *Cache) storeSparse(tx *residency.Tx, e *engineevent.Event, t kv.Tier, group uint32) {
	for _, h := range e.BlockHashes {
		if slot, ok := c.sparse.known.Find(sparseKey(h, group)); ok {
			c.copySparse(tx, c.sparse.known.At(slot), t)
		} else if slot, ok := c.known.Find(uint64(h)); ok {
			c.placeSparse(tx, h, tx.Hash(c.known.At(slot).slot), waitingBlock{group, t})
		} else {
			c.waitSparse(h, waitingBlock{group, t})
		}
	}
}

// copySparse counts one more announcement in tier t of the known block b of a group.
func (c *Cache) copySparse(tx *residency.Tx, b *engineBlock, t kv.Tier) {
	switch {
	case b.refs.Of(t) == 0:
		b.refs.Add(t)
		tx.AddRef(t, b.slot)
	case c.mayBeListed(t): // the event may repeat what was announced before
		c.count.Reannounced.Add(1)
	case !b.refs.Add(t):
		c.drop(dropTooManyCopies, 1)
	}
}

// placeSparse stores one announcement of a block of a group. seq is the primary group's block with
// the same engine hash h.
func (c *Cache) placeSparse(tx *residency.Tx, h kv.EngineHash, seq kv.SequenceHash, w waitingBlock) {
	key := sparseKey(h, w.group)
	if slot, ok := c.sparse.known.Find(key); ok {
		c.copySparse(tx, c.sparse.known.At(slot), w.tier)
		return
	}
	if c.tableFull() {
		c.drop(dropTableFull, 1)
		return
	}
	streamSlot, ok := tx.StoreGroup(w.tier, w.group, seq)
	if !ok {
		c.drop(dropTableFull, 1)
		return
	}
	slot, ok := c.sparse.known.Insert(key)
	if !ok {
		tx.DropRef(w.tier, streamSlot) // undo StoreGroup
		c.drop(dropTableFull, 1)
		return
	}
	b := engineBlock{slot: streamSlot}
	b.refs.Add(w.tier)
	*c.sparse.known.At(slot) = b
}

// waitSparse keeps an announcement until the primary group's block of hash h is known.
func (c *Cache) waitSparse(h kv.EngineHash, w waitingBlock) {
	s := &c.sparse
	if s.waits >= maxWaiting {
		c.drop(dropUnplaced, 1)
		return
	}
	if s.waits == 0 {
		s.since = c.cfg.Now()
	}
	s.waits++
	s.waiting[h] = append(s.waiting[h], w)
}

// placeWaiting stores the announcements that wait for the primary group's block h, whose hash is
// known now.
func (c *Cache) placeWaiting(tx *residency.Tx, h kv.EngineHash, seq kv.SequenceHash) {
	s := &c.sparse
	if s.waits == 0 {
		return
	}
	list := s.waiting[h]
	delete(s.waiting, h)
	s.waits -= len(list)
	for _, w := range list {
		c.placeSparse(tx, h, seq, w)
	}
}

// removeSparse takes back one announcement of each of hashes in a group and tier.
func (c *Cache) removeSparse(tx *residency.Tx, hashes []kv.EngineHash, t kv.Tier, group uint32) {
	for _, h := range hashes {
		slot, ok := c.sparse.known.Find(sparseKey(h, group))
		switch {
		case ok && c.sparse.known.At(slot).refs.Of(t) > 0:
			c.releaseSparseRefs(tx, slot, t, c.sparse.known.At(slot).refs.Of(t)-1)
		case c.sparse.unwait(h, waitingBlock{group, t}):
		default:
			c.drop(dropUnknownBlock, 1)
		}
	}
}

// releaseSparseRefs leaves the known block of a group in a slot n announcements in tier t. With the
// last one the block leaves t in the stream, and with the last in any tier it is forgotten.
func (c *Cache) releaseSparseRefs(tx *residency.Tx, slot uint32, t kv.Tier, n uint32) {
	b := c.sparse.known.At(slot)
	if b.refs.Of(t) == 0 {
		return
	}
	b.refs.Set(t, n)
	if n > 0 {
		return
	}
	tx.DropRef(t, b.slot)
	if b.refs == 0 {
		c.sparse.known.Remove(slot)
	}
}

// unwait takes back a waiting announcement. It returns false when there is none.
func (s *sparse) unwait(h kv.EngineHash, w waitingBlock) bool {
	list := s.waiting[h]
	i := slices.Index(list, w)
	if i < 0 {
		return false
	}
	s.waits--
	if s.waiting[h] = slices.Delete(list, i, i+1); len(s.waiting[h]) == 0 {
		delete(s.waiting, h)
	}
	return true
}

// clearSparse removes every block of other groups than the primary one from tier t.
func (c *Cache) clearSparse(tx *residency.Tx, t kv.Tier) {
	s := &c.sparse
	for slot := range s.known.Slots() {
		c.releaseSparseRefs(tx, slot, t, 0)
	}
	for h, list := range s.waiting {
		kept := slices.DeleteFunc(list, func(w waitingBlock) bool { return w.tier == t })
		s.waits -= len(list) - len(kept)
		if s.waiting[h] = kept; len(kept) == 0 {
			delete(s.waiting, h)
		}
	}
}

// releaseSparse forgets all blocks of other groups than the primary one, and removes them from the
// stream.
func (c *Cache) releaseSparse() {
	c.sparse.lost = c.sparse.lost || c.sparse.known.Len() > 0
	end := c.sparse.known.Slots()
	for from := uint32(0); from < end; from += blocksPerHold {
		c.stream.Update(func(tx *residency.Tx) {
			for slot := from; slot < min(from+blocksPerHold, end); slot++ {
				for _, t := range kv.Tiers {
					c.releaseSparseRefs(tx, slot, t, 0)
				}
			}
		})
	}
	c.forgetSparse()
}

// forgetSparse forgets all blocks of other groups than the primary one. The stream has none.
func (c *Cache) forgetSparse() {
	s := &c.sparse
	s.lost = s.lost || s.known.Len() > 0 || s.waits > 0
	s.known.Clear()
	s.waiting, s.waits = make(map[kv.EngineHash][]waitingBlock), 0
}

// appendWaiting appends events that announce the waiting blocks again, for a checkpoint.
func (s *sparse) appendWaiting(events []engineevent.Event) []engineevent.Event {
	for h, list := range s.waiting {
		for _, w := range list {
			i := slices.Index(s.numbers, w.group)
			events = append(events, engineevent.Event{
				Kind: kvevent.Stored, BlockHashes: []kv.EngineHash{h}, BlockSize: s.engine[i].BlockSize,
				Medium: w.tier.Medium(), Group: int32(i),
			})
		}
	}
	return events
}

// savedBlocks returns the known blocks for a checkpoint. view has the stream's blocks.
func (s *sparse) savedBlocks(view *dense.View[residency.Block]) (blocks []checkpoint.SparseBlock) {
	for slot := range s.known.Slots() {
		if b := s.known.At(slot); b.refs != 0 {
			at := view.At(b.slot)
			blocks = append(blocks, checkpoint.SparseBlock{Key: s.known.Key(slot), Hash: at.Parent, Group: at.Group(), Refs: b.refs})
		}
	}
	return blocks
}

// restoreSparse stores the blocks of a checkpoint, a bounded number under one hold of the lock.
func (c *Cache) restoreSparse(blocks []checkpoint.SparseBlock) {
	for some := range slices.Chunk(blocks, blocksPerHold) {
		c.stream.Update(func(tx *residency.Tx) {
			for _, b := range some {
				c.restoreSparseBlock(tx, b)
			}
		})
	}
}

// restoreSparseBlock stores one block of a checkpoint. A block of a group that the engine does not
// have any more, or without room, is dropped and counted.
func (c *Cache) restoreSparseBlock(tx *residency.Tx, b checkpoint.SparseBlock) {
	if !slices.Contains(c.sparse.numbers, b.Group) {
		c.drop(dropGroup, 1)
		return
	}
	if _, twice := c.sparse.known.Find(b.Key); twice || c.tableFull() {
		c.drop(dropTableFull, 1)
		return
	}
	slot, ok := c.sparse.known.Insert(b.Key)
	if !ok {
		c.drop(dropTableFull, 1)
		return
	}
	known := engineBlock{refs: b.Refs}
	for _, t := range kv.Tiers {
		if b.Refs.Of(t) == 0 {
			continue
		}
		if known.slot, ok = tx.StoreGroup(t, b.Group, b.Hash); !ok {
			known.refs.Set(t, 0)
			c.drop(dropTableFull, 1)
		}
	}
	if *c.sparse.known.At(slot) = known; known.refs == 0 {
		c.sparse.known.Remove(slot)
	}
}
