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
// stream published before the snapshot, and digest is Sum of the stream's Status after that
// event. The blocks of the primary KV group come before those of the others. Across all tiers a parent precedes its children. The caller owns the events.
//
// The lock is held only while pointers to the table's chunks are copied. Until Snapshot
// returns, the first change of each chunk copies that chunk, 18 KiB.
func (s *Stream) Snapshot() (events []kvevent.RouterEvent, last uint64, digest uint64) {
	s.mu.Lock()
	s.tx.Flush()
	table, last, digest := s.tx.table.View(), s.tx.lastID, s.tx.primary.digest+s.tx.grouped.digest
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
	// grouped are the blocks of other KV groups than the primary one.
	grouped []groupPair
}

// groupPair is a block of a KV group in one tier.
type groupPair struct {
	pair
	group uint32
}

// snapshotEvents returns stored events for every block in table, parents before children. An
// event is a chain of blocks of one tier: a head, then its child, and so on. A block is a head
// when its parent is not in its tier, when a sibling with a lower hash follows the parent, or
// when the event is full. Events are sorted by the position of the head: a parent lies one
// position lower than its child.
func snapshotEvents(owner kv.Owner, table *dense.View[Block]) []kvevent.RouterEvent {
	c := chains{table: table, index: dense.NewIndex(table)}
	for slot := range table.Slots() {
		if b := table.At(slot); b.Refs != 0 && b.Packed&inGroup == 0 { // not a free slot
			c.index.Add(slot)
		}
	}
	for slot := range table.Slots() {
		switch b := table.At(slot); {
		case b.Refs == 0:
		case b.Packed&inGroup != 0:
			c.addGrouped(b)
		default:
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
	return c.appendGrouped(events, owner)
}

// addGrouped adds a block of another group than the primary one, for each of its tiers.
func (c *chains) addGrouped(b *Block) {
	for _, t := range kv.Tiers {
		if b.Refs.Of(t) > 0 {
			c.grouped = append(c.grouped, groupPair{pair{t, b.Parent}, b.Group()})
		}
	}
}

// appendGrouped appends the events of the blocks in c.grouped, by tier, group and hash.
func (c *chains) appendGrouped(events []kvevent.RouterEvent, owner kv.Owner) []kvevent.RouterEvent {
	slices.SortFunc(c.grouped, func(a, b groupPair) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.group, b.group), cmp.Compare(a.hash, b.hash))
	})
	blocks := make([]kvevent.StoredBlock, 0, len(c.grouped))
	for i, b := range c.grouped {
		if last := len(events) - 1; i == 0 || events[last].Tier != b.tier || events[last].Group != b.group || len(events[last].Blocks) == maxEventBlocks {
			events = append(events, kvevent.RouterEvent{
				Owner: owner, Tier: b.tier, ID: uint64(len(events)) + 1, Kind: kvevent.Stored, Group: b.group,
			})
		}
		blocks = append(blocks, kvevent.StoredBlock{Hash: b.hash}) // one array for all events
		e := &events[len(events)-1]
		e.Blocks = blocks[len(blocks)-1-len(e.Blocks) : len(blocks) : len(blocks)]
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
