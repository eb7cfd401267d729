package residency

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Snapshot flushes, and returns everything the owner holds as stored events with ids
// from 1. last is the id of the last event that they include, digest the stream's
// digest after it. Across all tiers a parent precedes its children. The caller owns the
// events. The lock is held while pointers to the table's chunks are copied. Until
// Snapshot returns, a change of the stream copies the chunk that it changes, 18 KiB,
// once.
func (s *Stream) Snapshot() (events []kvevent.RouterEvent, last uint64, digest uint64) {
	s.mu.Lock()
	s.tx.Flush()
	table, last, digest := s.tx.table.View(), s.tx.lastID, s.tx.digest
	s.mu.Unlock()
	defer table.Close()
	return snapshotEvents(s.owner, table), last, digest
}

// pair names a block in one tier.
type pair struct {
	tier kv.Tier
	hash kv.SequenceHash
}

// chainHead is the first block of an event of a snapshot.
type chainHead struct {
	pair
	position, slot uint32
}

// chains are the events of a snapshot before they are written. next has, for each block
// in a tier, the slot plus one of the block that follows in its event; 0 is none.
type chains struct {
	table *dense.View[Block]
	index dense.Index[Block]
	heads []chainHead
	next  [kv.NumTiers][]uint32
	pairs int
}

// snapshotEvents returns stored events of every block in table. In an event each block
// but the head follows its parent. A block is a head when its parent is not in its
// tier, when a sibling with a lower hash follows the parent, or when the event is full.
// Heads are sorted by position. A parent lies one position lower than its child, so it
// precedes its child.
func snapshotEvents(owner kv.Owner, table *dense.View[Block]) []kvevent.RouterEvent {
	c := chains{table: table, index: dense.NewIndex(table)}
	for slot := range table.Slots() {
		if table.At(slot).Refs != 0 { // not a free slot
			c.index.Add(slot)
		}
	}
	for slot := range table.Slots() {
		if table.At(slot).Refs != 0 {
			c.add(slot)
		}
	}
	slices.SortFunc(c.heads, func(a, b chainHead) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.tier, b.tier), cmp.Compare(a.hash, b.hash))
	})
	events := make([]kvevent.RouterEvent, 0, len(c.heads))
	blocks := make([]kvevent.StoredBlock, 0, c.pairs)
	for _, head := range c.heads {
		r := table.At(head.slot)
		first := len(blocks)
		for slot := head.slot + 1; slot != 0; slot = c.follower(head.tier, slot-1) {
			blocks = append(blocks, kvevent.StoredBlock{
				Hash: kv.SequenceHash(table.Key(slot - 1)), Local: table.At(slot - 1).Local,
			})
		}
		events = append(events, kvevent.RouterEvent{
			Owner: owner, Tier: head.tier, ID: uint64(len(events)) + 1, Kind: kvevent.Stored,
			Parent: r.Parent, HasParent: r.HasParent(), StartPosition: head.position, HasStart: true,
			Blocks: blocks[first:len(blocks):len(blocks)],
		})
	}
	return events
}

// add makes the block in a slot a head, or the follower of its parent, in each of its
// tiers.
func (c *chains) add(slot uint32) {
	r := c.table.At(slot)
	parent, follows := uint32(0), r.HasParent() && r.Position()%maxEventBlocks != 0
	if follows {
		parent, follows = c.index.Find(uint64(r.Parent))
		follows = follows && c.table.At(parent).Position()+1 == r.Position()
	}
	for _, t := range kv.Tiers {
		if r.Refs.Of(t) == 0 {
			continue
		}
		c.pairs++
		if !follows || c.table.At(parent).Refs.Of(t) == 0 {
			c.addHead(t, slot)
			continue
		}
		if c.next[t] == nil {
			c.next[t] = make([]uint32, c.table.Slots())
		}
		switch sibling := c.next[t][parent]; {
		case sibling == 0:
			c.next[t][parent] = slot + 1
		case c.table.Key(sibling-1) < c.table.Key(slot):
			c.addHead(t, slot)
		default:
			c.addHead(t, sibling-1)
			c.next[t][parent] = slot + 1
		}
	}
}

func (c *chains) addHead(t kv.Tier, slot uint32) {
	h := kv.SequenceHash(c.table.Key(slot))
	c.heads = append(c.heads, chainHead{pair{t, h}, c.table.At(slot).Position(), slot})
}

// follower returns the slot plus one of the block that follows in the event; 0: none.
func (c *chains) follower(t kv.Tier, slot uint32) uint32 {
	if c.next[t] == nil {
		return 0
	}
	return c.next[t][slot]
}
