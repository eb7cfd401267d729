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

// Tx is the state of a Stream while its lock is held: blocks, references, digest,
// and the changes that wait for Flush. Stream.Update lends it.
//
// A slot stands for a block from the Store that added it until the last reference
// in any tier is gone.
type Tx struct {
	owner kv.Owner
	sinks []Sink
	// followers get copies of the events and apply them without the lock.
	followers []*follower

	table  dense.Table[Block]
	many   manyRefs // references beyond what the table's entries hold
	digest uint64
	pairs  uint64
	lastID uint64
	health kvevent.Health
	stats  Stats

	// Pending changes; the slices are reused from one flush to the next.
	pending []change
	stored  []kvevent.StoredBlock
	removed []kv.SequenceHash
	events  []kvevent.RouterEvent
}

// change is a pending event. Its blocks are n elements of Tx.stored or Tx.removed, from
// index from on.
type change struct {
	kind      kvevent.Kind
	tier      kv.Tier
	hasParent bool
	parent    kv.SequenceHash
	start     uint32
	from, n   int
}

// Find returns the slot of the block with hash h.
func (tx *Tx) Find(h kv.SequenceHash) (slot uint32, ok bool) { return tx.table.Find(uint64(h)) }

// Hash returns the hash of the block in a slot.
func (tx *Tx) Hash(slot uint32) kv.SequenceHash { return kv.SequenceHash(tx.table.Key(slot)) }

// Block returns the block in a slot. It is lent until the next change.
func (tx *Tx) Block(slot uint32) *Block { return tx.table.At(slot) }

// Store adds one reference in tier t to the block with hash h and returns the block's slot.
// A new block gets parent, position and LocalHash from b, and b.Refs must be zero. A known
// block keeps its own: the hash covers the whole prefix, so they are the same. ok is false
// when the table is full; then no reference was added.
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

// storeRun is Stream.Store.
func (tx *Tx) storeRun(t kv.Tier, parent kv.SequenceHash, hasParent bool, start uint32, blocks []kvevent.StoredBlock) {
	for i, b := range blocks {
		tx.Store(t, b.Hash, NewBlock(parent, hasParent, start+uint32(i), b.Local))
		parent, hasParent = b.Hash, true
	}
}

// AddRef adds one reference in tier t to the block in a slot.
func (tx *Tx) AddRef(t kv.Tier, slot uint32) {
	tx.table.Own(slot)
	b := tx.table.At(slot)
	if !b.Refs.Add(t) {
		tx.stats.RefOverflows++
		if tx.many == nil {
			tx.many = make(manyRefs)
		}
		tx.many[refKey{slot, t}]++
		return
	}
	if b.Refs.Of(t) == 1 {
		tx.show(t, slot, true)
	}
}

// DropRef takes back one reference in tier t to the block in a slot. A block without
// references in any tier is forgotten. A reference that is not there is counted in
// UnknownRemoves.
func (tx *Tx) DropRef(t kv.Tier, slot uint32) {
	tx.table.Own(slot)
	b := tx.table.At(slot)
	switch n := b.Refs.Of(t); {
	case n == 0:
		tx.stats.UnknownRemoves++
	case len(tx.many) > 0 && n == RefLimit(t) && tx.many.drop(refKey{slot, t}):
	default:
		b.Refs.Drop(t)
		if n == 1 {
			tx.hide(t, slot)
		}
	}
}

// show accounts for a block that has its first reference in tier t. With tell, the
// sinks hear of it.
func (tx *Tx) show(t kv.Tier, slot uint32, tell bool) {
	h := tx.Hash(slot)
	tx.digest += kv.Digest(h, t)
	tx.pairs++
	if tell {
		tx.pendStored(t, h, tx.table.At(slot))
	}
}

// hide accounts for a block whose last reference in tier t is gone. It forgets a
// block without references in any tier, and reports that.
func (tx *Tx) hide(t kv.Tier, slot uint32) (forgotten bool) {
	h := tx.Hash(slot)
	tx.digest -= kv.Digest(h, t)
	tx.pairs--
	if forgotten = tx.table.At(slot).Refs == 0; forgotten {
		tx.table.Remove(slot)
	}
	tx.pendRemoved(t, h)
	return forgotten
}

// pendStored makes a stored block pending. The block joins the last change if that ends
// with the block's parent.
func (tx *Tx) pendStored(t kv.Tier, h kv.SequenceHash, b *Block) {
	tx.boundPending()
	if c := tx.lastPending(kvevent.Stored, t); c != nil && b.HasParent() && tx.stored[len(tx.stored)-1].Hash == b.Parent {
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

// pendRemoved makes a removal pending. It joins the last change if that is a removal
// from the same tier.
func (tx *Tx) pendRemoved(t kv.Tier, h kv.SequenceHash) {
	tx.boundPending()
	if c := tx.lastPending(kvevent.Removed, t); c != nil {
		c.n++
	} else {
		tx.pending = append(tx.pending, change{kind: kvevent.Removed, tier: t, from: len(tx.removed), n: 1})
	}
	tx.removed = append(tx.removed, h)
}

// lastPending returns the last pending change if it has that kind and tier and room for
// one more block, else nil.
func (tx *Tx) lastPending(k kvevent.Kind, t kv.Tier) *change {
	if len(tx.pending) == 0 {
		return nil
	}
	c := &tx.pending[len(tx.pending)-1]
	if c.kind != k || c.tier != t || c.n == maxEventBlocks {
		return nil
	}
	return c
}

// boundPending makes room for one more pending block.
func (tx *Tx) boundPending() {
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

// Clear forgets every block in every tier, and emits one Cleared event. Pending
// changes are void and never become events. The result is the table as it was.
func (tx *Tx) Clear() dense.Table[Block] {
	table := tx.table
	tx.table = dense.Table[Block]{}
	tx.many = nil
	tx.digest, tx.pairs = 0, 0
	tx.resetPending()
	tx.pending = append(tx.pending, change{kind: kvevent.Cleared})
	tx.Flush()
	return table
}

// SetHealth says how far the stream can be trusted from now on. Sinks that are
// HealthObservers hear of a change.
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

// Flush gives the pending changes their ids and hands them to the sinks.
func (tx *Tx) Flush() {
	if len(tx.pending) == 0 {
		return
	}
	tx.events = tx.events[:0]
	for _, c := range tx.pending {
		tx.lastID++
		e := kvevent.RouterEvent{Owner: tx.owner, Tier: c.tier, ID: tx.lastID, Kind: c.kind}
		switch c.kind {
		case kvevent.Stored:
			e.Parent, e.HasParent = c.parent, c.hasParent
			e.StartPosition, e.HasStart = c.start, true
			e.Blocks = tx.stored[c.from : c.from+c.n]
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
	tx.tellFollowers()
	clear(tx.events)
	tx.resetPending()
}
