package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// An entry says that an owner holds the blocks lo..hi-1 of a run in one tier. The
// entry is one word, so that one atomic store changes it. An owner with several
// tiers or holes in a run has several entries. Zero is a free slot.
//
// A reader looks at the slots of a run once, from first to last. The reader must see every
// block that its owner never removed. So a block only moves to an entry in a later slot.
type entry uint64

func newEntry(o ownerID, t kv.Tier, lo, hi int) entry { return key(o, t) | entry(lo)<<8 | entry(hi) }

// key returns the owner and the tier of an entry as an entry without blocks.
func key(o ownerID, t kv.Tier) entry { return entry(o)<<32 | entry(t)<<16 }

// Masks of an entry for Slots.Find.
const (
	anyBits   = ^uint64(0)
	ownerBits = anyBits >> 32 << 32
	keyBits   = anyBits >> 16 << 16
	// endBits cover the key and hi.
	endBits = keyBits | 0xff
)

func (e entry) key() entry      { return e &^ 0xffff }
func (e entry) owner() ownerID  { return ownerID(e >> 32) }
func (e entry) tier() kv.Tier   { return kv.Tier(e >> 16) }
func (e entry) lo() int         { return int(e >> 8 & 0xff) }
func (e entry) hi() int         { return int(e & 0xff) }
func (e entry) mask() runs.Mask { return runs.Span(e.lo(), e.hi()) }

// survey is what recordHeld needs to know before it adds the blocks lo..hi-1 of a run to an owner
// in one tier: the blocks that the owner has there, and the slots that the span may join.
type survey struct {
	// held are the owner's blocks of the run in this tier.
	held runs.Mask
	// left is the entry that ends where a span begins, right the entry that begins
	// where the span ends. Each may be nil. leftAt and rightAt give their order.
	left, right     *atomic.Uint64
	leftAt, rightAt int
	// ownerInRun is true when the owner has an entry in this run in any tier.
	ownerInRun bool
}

// survey reads the entries of run r once, before recordHeld adds blocks lo..hi-1 to an owner
// in a tier. k names both. It returns the owner's blocks in the tier and the entries that touch
// the new blocks. Each may be missing.
func (x *Index) survey(r runs.ID, k entry, lo, hi int) survey {
	var s survey
	walk := x.runs.Slots(r)
	for at := 0; ; at++ {
		slot := walk.Find(ownerBits, uint64(k)&ownerBits)
		if slot == nil {
			return s
		}
		s.ownerInRun = true
		e := entry(slot.Load())
		if e.key() != k {
			continue
		}
		s.held = s.held.Or(e.mask())
		if e.hi() == lo {
			s.left, s.leftAt = slot, at
		} else if e.lo() == hi {
			s.right, s.rightAt = slot, at
		}
	}
}

// recordNew is recordHeld of the last blocks of run r, which the event has appended: nobody holds
// them.
func (x *Index) recordNew(o *owner, r runs.ID, t kv.Tier, lo, hi int) {
	walk := x.runs.Slots(r)
	left := walk.Find(endBits, uint64(newEntry(o.id, t, 0, lo)))
	if left == nil {
		x.recordHeld(o, r, t, lo, hi)
		return
	}
	left.Store(left.Load() + uint64(hi-lo)) // hi is the lowest byte
	x.countHeld(o, r, t, lo, hi)
}

// countHeld adds the blocks lo..hi-1 of run r in tier t to the sums of owner o.
func (x *Index) countHeld(o *owner, r runs.ID, t kv.Tier, lo, hi int) {
	o.heldDigest += x.digest(r, t, lo, hi)
	o.heldPairs += uint64(hi - lo)
	x.heldPairs += hi - lo
}

// recordHeld records that owner o holds the blocks lo..hi-1 of run r, a row of blocks, in tier t.
// It extends the entries of the owner that end at lo or begin at hi, or else writes a new
// entry: a word for a span of blocks. recordHeld returns the number of these blocks that the owner
// held already. The caller holds x.mu.
func (x *Index) recordHeld(o *owner, r runs.ID, t kv.Tier, lo, hi int) (duplicates int) {
	k := key(o.id, t)
	s := x.survey(r, k, lo, hi)
	span := runs.Span(lo, hi)
	if both := span.And(s.held); !both.Empty() {
		// Add the gaps between the blocks that the owner holds already.
		fresh := span.Without(s.held)
		for !fresh.Empty() {
			a, b := fresh.PopSpan()
			x.recordHeld(o, r, t, a, b)
		}
		return both.Count()
	}
	x.countHeld(o, r, t, lo, hi)
	word := func(lo, hi int) uint64 { return uint64(newEntry(o.id, t, lo, hi)) }
	switch {
	case s.left != nil && s.right != nil:
		whole := word(entry(s.left.Load()).lo(), entry(s.right.Load()).hi())
		first, last := s.left, s.right
		if s.leftAt > s.rightAt {
			first, last = last, first
		}
		// Readers look at the slots from first to last. The later slot gets all blocks before
		// the earlier slot loses its own, so no reader misses a block.
		last.Store(whole)
		first.Store(0)
		x.runs.WriterState(r).EntryCount--
		o.entryCount--
	case s.left != nil:
		s.left.Store(word(entry(s.left.Load()).lo(), hi))
	case s.right != nil:
		s.right.Store(word(lo, entry(s.right.Load()).hi()))
	default:
		walk := x.runs.Slots(r)
		free := walk.Find(anyBits, 0)
		if free == nil {
			more := x.runs.AddSlots(r)
			free = more.Next()
		}
		x.addEntry(o, r, free, newEntry(o.id, t, lo, hi), !s.ownerInRun)
		x.runs.Compact(r) // AddSlots may have added more slots than the run needs
	}
	return 0
}

// addEntry writes entry e of owner o into a free slot of run r and counts the entry. first
// is true when the owner has no other entry in this run, so that o.runs lacks the run.
func (x *Index) addEntry(o *owner, r runs.ID, slot *atomic.Uint64, e entry, first bool) {
	slot.Store(uint64(e))
	x.runs.WriterState(r).EntryCount++
	o.entryCount++
	if first {
		x.noteRun(o, r)
	}
}

// recordNotHeld records that owner o no longer holds a set of blocks of run r, a row of
// blocks, in tier t. It returns the blocks of the set that o held. set is not empty. The
// blocks stay in the run, also without an owner: the caller frees an unused run.
func (x *Index) recordNotHeld(o *owner, r runs.ID, t kv.Tier, set runs.Mask) runs.Mask {
	first, last := set.First(), set.Last()
	n := set.Count()
	gone := set
	if n > last-first && x.cutSpan(o, r, newEntry(o.id, t, first, last+1)) {
		o.heldDigest -= x.digest(r, t, first, last+1)
	} else {
		gone = x.cutEntries(o, r, key(o.id, t), set)
		n = gone.Count()
		hashes := x.arena.Hashes(x.runs.Head(r).Storage())
		for left := gone; !left.Empty(); {
			a, b := left.PopSpan()
			o.heldDigest -= runs.Digest(hashes[a:b], t)
		}
	}
	o.heldPairs -= uint64(n)
	x.heldPairs -= n
	return gone
}

// cutSpan cuts the blocks of gone out of the entry of owner o in run r that has all of them. It returns
// false and changes nothing when there is no such entry.
func (x *Index) cutSpan(o *owner, r runs.ID, gone entry) bool {
	walk := x.runs.Slots(r)
	for {
		slot := walk.Find(keyBits, uint64(gone.key()))
		if slot == nil {
			return false
		}
		e := entry(slot.Load())
		if e.lo() > gone.lo() || e.hi() < gone.hi() {
			continue
		}
		if e.hi() == gone.hi() && e.lo() < gone.lo() { // the usual way for blocks to leave
			slot.Store(uint64(newEntry(o.id, e.tier(), e.lo(), gone.lo())))
			return true
		}
		x.reduceEntry(o, r, slot, walk, e, e.mask().Without(gone.mask()))
		x.runs.Compact(r) // reduceEntry may have added more slots than the run needs
		return true
	}
}

// cutEntries removes the blocks of set from the entries with key k, of owner o, in run r. It returns
// the blocks of set that these entries had.
func (x *Index) cutEntries(o *owner, r runs.ID, k entry, set runs.Mask) (gone runs.Mask) {
	first, last := set.First(), set.Last()
	walk := x.runs.Slots(r)
	for gone != set {
		slot := walk.Find(keyBits, uint64(k))
		if slot == nil {
			break
		}
		e := entry(slot.Load())
		if e.hi() <= first || e.lo() > last {
			continue
		}
		if cut := set.And(e.mask()); !cut.Empty() {
			gone = gone.Or(cut)
			x.reduceEntry(o, r, slot, walk, e, e.mask().Without(cut))
		}
	}
	x.runs.Compact(r) // reduceEntry may have added more slots than the run needs
	return gone
}

// reduceEntry reduces entry e of owner o, in a slot of run r, to the blocks of left, a part of
// the entry. An entry is one span lo..hi-1. So a hole makes further entries, which go to later
// slots: readers look at the slots from first to last and must miss no block. rest is the
// walk over the slots behind slot.
func (x *Index) reduceEntry(o *owner, r runs.ID, slot *atomic.Uint64, rest runs.Slots, e entry, left runs.Mask) {
	if left.Empty() {
		slot.Store(0)
		x.runs.WriterState(r).EntryCount--
		o.entryCount--
		return
	}
	lo, hi := left.PopSpan()
	for !left.Empty() {
		a, b := left.PopSpan()
		free := rest.Find(anyBits, 0)
		if free == nil {
			rest = x.runs.AddSlots(r)
			free = rest.Next()
		}
		x.addEntry(o, r, free, newEntry(o.id, e.tier(), a, b), false) // e is the first entry here
	}
	slot.Store(uint64(newEntry(o.id, e.tier(), lo, hi)))
}

// digest returns the sum of kv.Digest over the blocks lo..hi-1 of a run in tier t.
func (x *Index) digest(r runs.ID, t kv.Tier, lo, hi int) uint64 {
	return runs.Digest(x.arena.Hashes(x.runs.Head(r).Storage())[lo:hi], t)
}

// clearEntries removes all entries of a retired owner id from run r and returns their
// number. The sweep calls it run by run. The id's pairs no longer count, so clearEntries
// changes no sum.
func (x *Index) clearEntries(id ownerID, r runs.ID) int {
	n := 0
	walk := x.runs.Slots(r)
	for slot := walk.Find(ownerBits, uint64(key(id, 0))); slot != nil; slot = walk.Find(ownerBits, uint64(key(id, 0))) {
		slot.Store(0)
		n++
	}
	x.runs.WriterState(r).EntryCount -= int32(n)
	return n
}
