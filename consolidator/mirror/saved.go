package mirror

import (
	"slices"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// AppendCheckpoint appends the checkpoint of c and of its Sequencer's state seq to dst, without
// the checksum of the file. about names the rank that the file is about. Hidden blocks (see
// Hide) and tokens are not saved.
func (c *Cache) AppendCheckpoint(dst []byte, about checkpoint.ID, seq sequence.State) []byte {
	s := &checkpoint.State{
		Sequence: seq, Degraded: c.degraded, LowerTiers: c.lowerTiers, Groups: c.groups.main,
	}
	if events := c.sparse.appendWaiting(c.park.appendEvents(nil)); len(events) > 0 {
		s.Parked = engineevent.AppendBatch(nil, &engineevent.Batch{Events: events})
	}
	for i := range c.names.list {
		s.Names = append(s.Names, checkpoint.Name{LoRA: c.names.list[i].lora, Salt: c.names.list[i].salt})
	}
	for h := range c.onlyListed {
		s.Unlisted = append(s.Unlisted, h)
	}
	view := c.stream.View() // the stream does not wait while its blocks are written
	defer view.Close()
	s.Sparse = c.sparse.savedBlocks(view)
	return checkpoint.Append(dst, about, s, &checkpoint.Tables{
		NumBlocks: view.Len() - c.groupBlocks(), NumEngineBlocks: c.known.Len(),
		Blocks: func(yield func(checkpoint.Block) bool) {
			for slot := range view.Slots() {
				b := view.At(slot)
				if b.Refs != 0 && b.Group() == 0 && !yield(checkpoint.Block{Slot: slot, Hash: kv.SequenceHash(view.Key(slot)), Block: *b}) {
					return
				}
			}
		},
		EngineBlocks: func(yield func(checkpoint.EngineBlock) bool) {
			for slot := range c.known.Slots() {
				b := c.known.At(slot)
				h := kv.EngineHash(c.known.Key(slot))
				if b.refs != 0 && !yield(checkpoint.EngineBlock{Hash: h, Slot: b.slot, Name: b.nameID, Refs: b.refs}) {
					return
				}
			}
		},
	})
}

// groupBlocks returns the number of blocks in the stream that are not of the primary KV group. Only
// this goroutine changes the stream.
func (c *Cache) groupBlocks() (n int) {
	c.stream.Update(func(tx *residency.Tx) { n = tx.GroupBlocks() })
	return n
}

// Restore loads the state of a checkpoint into an empty mirror and its empty stream. It
// returns the number of engine blocks. The stream is degraded until Confirmed or the next
// batch.
//
// Restore releases the stream's lock many times. Meanwhile observers see a part of the saved
// blocks in a degraded stream.
func (c *Cache) Restore(s *checkpoint.Saved) int {
	c.degraded, c.lowerTiers = s.Degraded, s.LowerTiers
	// A checkpoint does not say why its stream was degraded. A list brings no window back.
	c.sparse.lost = s.Degraded && c.sparse.configured()
	for group, main := range s.Groups {
		c.groups.learn(group, main)
	}
	blocks := s.EngineBlocks[:min(len(s.EngineBlocks), c.cfg.MaxBlocks)]
	if len(blocks) < len(s.EngineBlocks) {
		c.drop(dropTableFull, len(s.EngineBlocks)-len(blocks))
	}
	c.unconfirmed = true // the engine may have been replaced since
	placed := c.placedBlocks(s, blocks)
	c.stream.Update(c.updateHealth) // degraded before an observer sees the first block
	c.storePlaced(placed)
	c.restoreSparse(s.Sparse)
	if len(s.Unlisted) > 0 {
		c.onlyListed = make(map[kv.EngineHash]struct{}, len(s.Unlisted))
		for _, h := range s.Unlisted {
			c.onlyListed[h] = struct{}{}
		}
	}
	// Parked events (their parent is unknown) and waiting blocks are saved as an engine batch.
	var dec engineevent.Decoder
	var parked engineevent.Batch
	if len(s.Parked) > 0 && dec.Decode(s.Parked, &parked) == nil {
		for i := range parked.Events {
			c.stream.Update(func(tx *residency.Tx) { c.applyEvent(tx, &parked.Events[i]) })
		}
	}
	c.stream.Update(func(tx *residency.Tx) {
		c.updateHealth(tx)
		tx.Flush()
	})
	return len(blocks) + len(s.Sparse)
}

// WantList makes WantsList return true, if the engine can list. A restored mirror needs the
// list to find out which of its blocks the engine still has.
func (c *Cache) WantList() { c.wantList = c.cfg.CanList }

// placedBlock is an engine block with its place in a sequence. at.Refs counts the engine's
// copies by tier.
type placedBlock struct {
	hash   kv.EngineHash
	seq    kv.SequenceHash
	at     residency.Block
	nameID uint32
}

// placedBlocks returns the engine blocks of a checkpoint, each with its place: parent, position
// and SequenceHash. The names (LoRA adapter and salt) get new numbers. A block whose name has no
// room among the bounded names is dropped and counted.
func (c *Cache) placedBlocks(s *checkpoint.Saved, blocks []checkpoint.EngineBlock) []placedBlock {
	placed := make([]placedBlock, 0, len(blocks))
	for _, b := range blocks {
		at, saved := s.Block(b), s.Names[b.Name]
		number, ok := c.names.number(name{kv.BoundedName(saved.LoRA), kv.BoundedName(saved.Salt)})
		if !ok {
			c.drop(dropNamesFull, 1)
			continue
		}
		p := placedBlock{hash: b.Hash, seq: at.Hash, at: at.Block, nameID: number}
		p.at.Refs = b.Refs
		placed = append(placed, p)
	}
	return placed
}

// storePlaced stores blocks of a checkpoint or of the hidden ones, whose place in a sequence is
// known, and adds them to the known blocks. Several engine blocks may have the same
// SequenceHash. The stream gets one reference for each of them in each tier: StoreAll adds the
// first, learnPlaced the others.
//
// storePlaced releases the stream's lock in between. No reference is removed between two holds,
// because only this goroutine writes to the stream.
func (c *Cache) storePlaced(blocks []placedBlock) {
	c.stream.StoreAll(func(yield func(kv.SequenceHash, residency.Block) bool) {
		for i := range blocks {
			if !yield(blocks[i].seq, blocks[i].at) {
				return
			}
		}
	})
	// counted has, for each tier, the slots whose reference from StoreAll has an engine block.
	var counted [kv.NumTiers]map[uint32]bool
	for t := range counted {
		counted[t] = make(map[uint32]bool)
	}
	for some := range slices.Chunk(blocks, blocksPerHold) {
		c.stream.Update(func(tx *residency.Tx) {
			for i := range some {
				c.learnPlaced(tx, &some[i], &counted)
			}
		})
	}
}

// learnPlaced adds b, which the stream's StoreAll has stored, to the known blocks. StoreAll adds
// one reference for all engine blocks of one SequenceHash. counted[t] has the slots whose
// reference in tier t already belongs to a known engine block; learnPlaced adds one for b there.
func (c *Cache) learnPlaced(tx *residency.Tx, b *placedBlock, counted *[kv.NumTiers]map[uint32]bool) {
	slot, ok := tx.Find(b.seq) // not ok: StoreAll found the table full
	if _, twice := c.known.Find(uint64(b.hash)); !ok || twice {
		c.names.freeUnused(b.nameID) // it may have been added for b
		return
	}
	for _, t := range kv.Tiers {
		switch {
		case b.at.Refs.Of(t) == 0: // the engine has no copy in t
		case counted[t][slot]:
			tx.AddRef(t, slot)
		default:
			counted[t][slot] = true
		}
	}
	c.addKnown(b.hash, engineBlock{slot: slot, nameID: b.nameID, refs: b.at.Refs})
}
