package residency

import (
	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// maxEventBlocks bounds one event to about 30 KiB on the wire.
	maxEventBlocks = 512
	// maxPendingEvents and maxPendingBlocks bound the pending changes. A change beyond
	// them flushes first.
	maxPendingEvents = kvevent.MaxEventsPerMessage
	maxPendingBlocks = kvevent.MaxBlocksPerMessage
)

// Tx gives access to the state of a Stream: blocks, references, digest, and the changes
// that wait for Flush. Stream.Update lends a Tx to its function and holds the stream's
// lock for that time. The methods of a Tx take no lock.
//
// A slot is the number of a block's entry in the stream's table. A block keeps its slot
// from the Store that added it until its last reference in any tier is gone.
type Tx struct {
	owner kv.Owner
	sinks []Sink
	// followers get copies of the events and apply them without the lock.
	followers []*follower

	table  dense.Table[Block]
	excess excessRefs // references beyond the limits of Block.Refs
	// primary and grouped are the sums over the blocks of the primary KV group and of all
	// others. groupBlocks is the number of entries in the table that grouped counts.
	primary, grouped sums
	groupBlocks      int
	lastID           uint64 // of the last event made; 0 before the first
	health           kvevent.Health
	stats            Stats

	// Changes that wait for Flush. The slices are reused from one flush to the next.
	pending []change
	stored  []kvevent.StoredBlock
	removed []kv.SequenceHash
	events  []kvevent.RouterEvent
}

// sums are the sum of kv.Digest over resident (block, tier) pairs, and their number.
type sums struct{ digest, pairs uint64 }

// change is a pending event. Its n blocks begin at index from of Tx.stored or Tx.removed.
type change struct {
	kind      kvevent.Kind
	tier      kv.Tier
	group     uint32
	hasParent bool
	parent    kv.SequenceHash
	start     uint32
	from, n   int
}

// Find returns the slot of the block with hash h. ok is false when the stream does not
// hold the block.
func (tx *Tx) Find(h kv.SequenceHash) (slot uint32, ok bool) { return tx.table.Find(uint64(h)) }

// Hash returns the key of the block in a slot: its hash, or kv.InGroup of the hash for a block of
// another KV group than the primary one.
func (tx *Tx) Hash(slot uint32) kv.SequenceHash { return kv.SequenceHash(tx.table.Key(slot)) }

// Block returns the block in a slot. The pointer is valid until the next change; the
// caller must not write through it.
func (tx *Tx) Block(slot uint32) *Block { return tx.table.At(slot) }

// Store adds one reference in tier t to the block with hash h and returns the block's slot.
// A new block is inserted as b; b.Refs must be 0. A block that is in the table keeps its
// parent, position and LocalHash, and Store ignores b: h covers the whole prefix, so the
// values are the same. ok is false when the table is full. Then the stream is unchanged
// and Stats.TableFull counts the block.
func (tx *Tx) Store(t kv.Tier, h kv.SequenceHash, b Block) (slot uint32, ok bool) {
	slot, found := tx.table.Find(uint64(h))
	if !found {
		if slot, ok = tx.table.Insert(uint64(h)); !ok {
			tx.stats.TableFull++
			return 0, false
		}
		*tx.table.At(slot) = b
	}
	tx.AddRef(t, slot)
	return slot, true
}

// StoreGroup is Store for the block of a KV group that ends where block h of the primary group ends.
// It panics for group 0.
func (tx *Tx) StoreGroup(t kv.Tier, group uint32, h kv.SequenceHash) (slot uint32, ok bool) {
	if group == 0 {
		panic("BUG: the primary group's block stored without its place")
	}
	key := kv.InGroup(h, group)
	if _, found := tx.Find(key); !found {
		tx.groupBlocks++
	}
	if slot, ok = tx.Store(t, key, newGroupBlock(h, group)); !ok {
		tx.groupBlocks--
	}
	return slot, ok
}

// GroupBlocks returns the number of blocks in the table that are not of the primary group.
func (tx *Tx) GroupBlocks() int { return tx.groupBlocks }

// sumsOf returns the sums that count block b.
func (tx *Tx) sumsOf(b *Block) *sums {
	if b.Packed&inGroup != 0 {
		return &tx.grouped
	}
	return &tx.primary
}

// storeRun adds a reference in tier t to each of a run of blocks, one the parent of the next. parent
// is the parent of the first block, which is the owner's block number start from the prompt's first.
func (tx *Tx) storeRun(t kv.Tier, parent kv.SequenceHash, hasParent bool, start uint32, blocks []kvevent.StoredBlock) {
	for i, b := range blocks {
		tx.Store(t, b.Hash, NewBlock(parent, hasParent, start+uint32(i), b.Local))
		parent, hasParent = b.Hash, true
	}
}

// AddRef adds one reference in tier t to the block in a slot. With its first reference
// in t the block becomes resident there, and a stored event becomes pending. The packed count in
// the table ends at RefLimit; tx.excess counts the references beyond.
func (tx *Tx) AddRef(t kv.Tier, slot uint32) {
	tx.table.Unshare(slot)
	b := tx.table.At(slot)
	if !b.Refs.Add(t) {
		tx.stats.RefOverflows++
		if tx.excess == nil {
			tx.excess = make(excessRefs)
		}
		tx.excess[refKey{slot, t}]++
		return
	}
	if b.Refs.Of(t) == 1 {
		tx.addPair(t, slot, true)
	}
}

// DropRef takes back one reference in tier t to the block in a slot. With its last
// reference in t the block stops being resident there; with the last one in any tier the
// slot becomes free. If the block has no reference in t, nothing changes and
// Stats.UnknownRemoves counts it.
func (tx *Tx) DropRef(t kv.Tier, slot uint32) {
	tx.table.Unshare(slot) // open views keep the old entry
	b := tx.table.At(slot)
	switch n := b.Refs.Of(t); {
	case n == 0:
		tx.stats.UnknownRemoves++
	case len(tx.excess) > 0 && n == RefLimit(t) && tx.excess.drop(refKey{slot, t}):
		// A reference beyond the packed count's limit was dropped. The packed count stays.
	default:
		b.Refs.Drop(t)
		if n == 1 {
			tx.removePair(t, slot)
		}
	}
}

// addPair adds a block to digest and pairs for tier t, after its first reference there.
// If publish is true, a stored event for the block becomes pending.
func (tx *Tx) addPair(t kv.Tier, slot uint32, publish bool) {
	h, b := tx.Hash(slot), tx.table.At(slot)
	s := tx.sumsOf(b)
	s.digest += kv.Digest(h, t)
	s.pairs++
	if publish {
		tx.pendStored(t, h, b)
	}
}

// removePair takes a block out of digest and pairs for tier t, after its last reference
// there, and makes a removed event pending. It frees the slot of a block without
// references in any tier, and reports whether it did.
func (tx *Tx) removePair(t kv.Tier, slot uint32) (freed bool) {
	h, b := tx.Hash(slot), tx.table.At(slot)
	s, group := tx.sumsOf(b), b.Group()
	s.digest -= kv.Digest(h, t)
	s.pairs--
	if group != 0 {
		h = b.Parent // the name in events
	}
	if freed = b.Refs == 0; freed {
		tx.table.Remove(slot)
		if group != 0 {
			tx.groupBlocks--
		}
	}
	tx.pendRemoved(t, group, h)
	return freed
}

// pendStored makes a stored event for the block pending. The block joins the last pending
// change if that change stores the block's parent last.
func (tx *Tx) pendStored(t kv.Tier, h kv.SequenceHash, b *Block) {
	tx.flushIfFull()
	if group := b.Group(); group != 0 {
		tx.pendStoredInGroup(t, group, b.Parent)
		return
	}
	if c := tx.lastPending(kvevent.Stored, t, 0); c != nil && b.HasParent() && tx.stored[len(tx.stored)-1].Hash == b.Parent {
		c.n++
	} else {
		tx.pending = append(tx.pending, change{
			kind: kvevent.Stored, tier: t,
			parent: b.Parent, hasParent: b.HasParent(), start: b.Position(),
			from: len(tx.stored), n: 1,
		})
	}
	tx.stored = append(tx.stored, kvevent.StoredBlock{Hash: h, Local: b.Local})
}

// pendStoredInGroup makes a stored event for the block of a group pending that ends where block h
// ends. The block joins the last pending change of its kind, tier and group.
func (tx *Tx) pendStoredInGroup(t kv.Tier, group uint32, h kv.SequenceHash) {
	if c := tx.lastPending(kvevent.Stored, t, group); c != nil {
		c.n++
	} else {
		tx.pending = append(tx.pending, change{kind: kvevent.Stored, tier: t, group: group, from: len(tx.stored), n: 1})
	}
	tx.stored = append(tx.stored, kvevent.StoredBlock{Hash: h})
}

// pendRemoved makes a removed event for the block pending. The block joins the last
// pending change if that change removes blocks of the same group from the same tier.
func (tx *Tx) pendRemoved(t kv.Tier, group uint32, h kv.SequenceHash) {
	tx.flushIfFull()
	if c := tx.lastPending(kvevent.Removed, t, group); c != nil {
		c.n++
	} else {
		tx.pending = append(tx.pending, change{kind: kvevent.Removed, tier: t, group: group, from: len(tx.removed), n: 1})
	}
	tx.removed = append(tx.removed, h)
}

// lastPending returns the last pending change if it has that kind, tier and group and room for
// one more block, else nil.
func (tx *Tx) lastPending(k kvevent.Kind, t kv.Tier, group uint32) *change {
	if len(tx.pending) == 0 {
		return nil
	}
	c := &tx.pending[len(tx.pending)-1]
	if c.kind != k || c.tier != t || c.group != group || c.n == maxEventBlocks {
		return nil
	}
	return c
}

// flushIfFull flushes if the pending changes have no room for one more block.
func (tx *Tx) flushIfFull() {
	if len(tx.pending) < maxPendingEvents && len(tx.stored)+len(tx.removed) < maxPendingBlocks {
		return
	}
	tx.stats.InlineFlushes++
	tx.Flush()
}

func (tx *Tx) resetPending() {
	tx.pending = tx.pending[:0]
	tx.stored = tx.stored[:0]
	tx.removed = tx.removed[:0]
}

// Clear forgets every block in every tier, and publishes one Cleared event. Pending
// changes never become events. Clear returns the table with the forgotten blocks, which
// the caller then owns.
func (tx *Tx) Clear() dense.Table[Block] {
	table := tx.table
	tx.table = dense.Table[Block]{}
	tx.excess = nil
	tx.primary, tx.grouped, tx.groupBlocks = sums{}, sums{}, 0
	tx.resetPending()
	tx.pending = append(tx.pending, change{kind: kvevent.Cleared})
	tx.Flush()
	return table
}

// SetHealth sets the stream's health. If the health changes, Tx calls every sink that is
// a HealthObserver.
func (tx *Tx) SetHealth(h kvevent.Health) {
	if tx.health == h {
		return
	}
	tx.health = h
	for _, sink := range tx.sinks {
		if o, ok := sink.(HealthObserver); ok {
			o.HealthChanged(h)
		}
	}
}

// Flush publishes the pending changes: each becomes an event with the next event id. The
// sinks see all events of one Flush in one call. Followers (see Merged.FollowPool) get a copy.
// Without pending changes Flush does nothing.
func (tx *Tx) Flush() {
	if len(tx.pending) == 0 {
		return
	}
	tx.events = tx.events[:0]
	for _, c := range tx.pending {
		tx.lastID++
		e := kvevent.RouterEvent{Owner: tx.owner, Tier: c.tier, ID: tx.lastID, Kind: c.kind, Group: c.group}
		switch c.kind {
		case kvevent.Stored:
			e.Parent, e.HasParent = c.parent, c.hasParent
			e.StartPosition, e.HasStart = c.start, c.group == 0
			e.Blocks = tx.stored[c.from : c.from+c.n] // lent to the sinks
		case kvevent.Removed:
			e.Removed = tx.removed[c.from : c.from+c.n]
		}
		tx.stats.Events++
		tx.stats.Blocks += uint64(c.n)
		tx.events = append(tx.events, e)
	}
	for _, sink := range tx.sinks {
		sink.Publish(tx.events)
	}
	tx.queueForFollowers()
	clear(tx.events) // or tx.events would keep outgrown arrays of stored and removed alive
	tx.resetPending()
}
