package residency

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Snapshot publishes the pending changes, and returns all resident blocks as stored
// events. The ids of these events count from 1. last is the id of the last event that the
// stream published before the snapshot, and digest is the stream's digest after that
// event. Across all tiers a parent precedes its children. The caller owns the events.
//
// The lock is held only while pointers to the table's chunks are copied. Until Snapshot
// returns, the first change of each chunk copies that chunk, 18 KiB.
func (s *Stream) Snapshot() (events []kvevent.RouterEvent, last uint64, digest uint64) {
	s.mu.Lock()
	s.tx.Flush()
	table, last, digest := s.tx.table.View(), s.tx.lastID, s.tx.digest
	s.mu.Unlock()
	defer table.Close()
	return snapshotEvents(s.owner, table), last, digest
}

// pair is a block in one tier.
type pair struct {
	tier kv.Tier
	hash kv.SequenceHash
}

// chainHead is the first block of an event in a snapshot.
type chainHead struct {
	pair
	position, slot uint32
}

// chains assigns the blocks of a table to the events of a snapshot. An event is a chain:
// a head, and then each block's child. next has, by tier and slot, the slot plus one of
// the next block in the same event; 0: the event ends. pairs counts (block, tier) pairs.
type chains struct {
	table *dense.View[Block]
	index dense.Index[Block]
	heads []chainHead
	next  [kv.NumTiers][]uint32
	pairs int
}

// snapshotEvents returns stored events for every block in table, parents before children. An
// event is a chain of blocks of one tier: a head, then its child, and so on. A block is a head
// when its parent is not in its tier, when a sibling with a lower hash follows the parent, or
// when the event is full. Events are sorted by the position of the head: a parent lies one
// position lower than its child.
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
		b := table.At(head.slot)
		first := len(blocks)
		for slot, more := head.slot, true; more; slot, more = c.nextInEvent(head.tier, slot) {
			blocks = append(blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(table.Key(slot)), Local: table.At(slot).Local})
		}
		events = append(events, kvevent.RouterEvent{
			Owner: owner, Tier: head.tier, ID: uint64(len(events)) + 1, Kind: kvevent.Stored,
			Parent: b.Parent, HasParent: b.HasParent(), StartPosition: head.position, HasStart: true,
			Blocks: blocks[first:len(blocks):len(blocks)], // one array for all events: c.pairs blocks
		})
	}
	return events
}

// add puts the block in a slot into an event for each of its tiers: after its parent
// (c.next[tier][parent] is the block's slot plus one), or as a head, which begins an event.
// Among siblings the block with the lowest hash follows the parent, so that the result does not
// depend on the slots. A head at every maxEventBlocks-th position keeps events within
// maxEventBlocks.
func (c *chains) add(slot uint32) {
	b := c.table.At(slot)
	parent, follows := uint32(0), b.HasParent() && b.Position()%maxEventBlocks != 0
	if follows { // unless the parent is not in the table, or contradicts the block
		parent, follows = c.index.Find(uint64(b.Parent))
		follows = follows && c.table.At(parent).Position()+1 == b.Position()
	}
	for _, t := range kv.Tiers {
		if b.Refs.Of(t) == 0 {
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
		default: // the sibling has the higher hash
			c.addHead(t, sibling-1)
			c.next[t][parent] = slot + 1
		}
	}
}

func (c *chains) addHead(t kv.Tier, slot uint32) {
	h := kv.SequenceHash(c.table.Key(slot))
	c.heads = append(c.heads, chainHead{pair{t, h}, c.table.At(slot).Position(), slot})
}

// nextInEvent returns the slot of the block after the block in slot. It returns false when the
// event of tier t ends there.
func (c *chains) nextInEvent(t kv.Tier, slot uint32) (next uint32, ok bool) {
	if c.next[t] == nil {
		return 0, false
	}
	next = c.next[t][slot]
	return next - 1, next != 0
}
