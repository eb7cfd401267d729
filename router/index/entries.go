package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// An entry says that an owner holds the blocks lo..hi-1 of a run in one tier:
// owner, tier, lo and hi in one word, so that growing and shrinking is one
// store. An owner has several entries in a run when it has several tiers or
// holes. Zero is a free slot.
//
// Readers look at the slots of a run once, from first to last. What is held all
// the time must be seen by all of them, so blocks only ever pass from an entry
// to one in a later slot.
type entry uint64

func newEntry(o ownerID, t kv.Tier, lo, hi int) entry { return key(o, t) | entry(lo)<<8 | entry(hi) }

// key is the owner and the tier of an entry.
func key(o ownerID, t kv.Tier) entry { return entry(o)<<32 | entry(t)<<16 }

func (e entry) key() entry     { return e &^ 0xffff }
func (e entry) owner() ownerID { return ownerID(e >> 32) }
func (e entry) tier() kv.Tier  { return kv.Tier(e >> 16) }
func (e entry) lo() int        { return int(e >> 8 & 0xff) }
func (e entry) hi() int        { return int(e & 0xff) }
func (e entry) mask() mask     { return spanMask(e.lo(), e.hi()) }

// slots walks over the entries of a run, for the writer.
type slots struct {
	list []atomic.Uint64
	more *overflow
}

func (x *Index) slots(r runID) slots {
	c, i := x.runs.chunk(r)
	s := slots{list: c.heads[i].entries[:]}
	if c.heads[i].flags.Load()&flagMore != 0 {
		s.more = c.over[i].Load()
	}
	return s
}

// next is the next slot, or nil.
func (s *slots) next() *atomic.Uint64 {
	for len(s.list) == 0 {
		if s.more == nil {
			return nil
		}
		s.list, s.more = s.more.entries[:], s.more.next.Load()
	}
	slot := &s.list[0]
	s.list = s.list[1:]
	return slot
}

const (
	overflowBytes = 8 + 8*overflowEntries
	// overflowBatch is how many nodes are made at once at most.
	overflowBatch = 16
)

// addSlot gives a run more slots behind the ones it has, and returns the first.
// A run with many owners gets several nodes at a time, one after the other in
// memory.
func (x *Index) addSlot(r runID) *atomic.Uint64 {
	c, i := x.runs.chunk(r)
	nodes := 0
	last := c.over[i].Load()
	for o := last; o != nil; o = o.next.Load() {
		last = o
		nodes++
	}
	fresh := make([]overflow, min(max(nodes, 1), overflowBatch))
	for n := 1; n < len(fresh); n++ {
		fresh[n-1].next.Store(&fresh[n])
	}
	x.overflowBytes += int64(len(fresh)) * overflowBytes
	if last != nil {
		last.next.Store(&fresh[0])
	} else {
		c.over[i].Store(&fresh[0])
		c.heads[i].flags.Or(flagMore)
	}
	return &fresh[0].entries[0]
}

// dropSlots forgets the overflow of a run that is going.
func (x *Index) dropSlots(r runID) {
	c, i := x.runs.chunk(r)
	for o := c.over[i].Load(); o != nil; o = o.next.Load() {
		x.overflowBytes -= overflowBytes
	}
	c.over[i].Store(nil)
}

// survey is what one owner has of a run in one tier, and where.
type survey struct {
	have mask
	// left and right are the entries that end and begin where a span begins and
	// ends, free is a slot without entry; nil when there is none. leftAt and
	// rightAt are their places in the walk.
	left, right, free *atomic.Uint64
	leftAt, rightAt   int
	// any is set when the owner has an entry in this run, in whatever tier.
	any bool
}

func (x *Index) survey(r runID, k entry, lo, hi int) survey {
	var s survey
	walk := x.slots(r)
	for at := 0; ; at++ {
		slot := walk.next()
		if slot == nil {
			return s
		}
		e := entry(slot.Load())
		switch {
		case e == 0:
			if s.free == nil {
				s.free = slot
			}
		case e.key() == k:
			s.any = true
			s.have = s.have.or(e.mask())
			if e.hi() == lo {
				s.left, s.leftAt = slot, at
			} else if e.lo() == hi {
				s.right, s.rightAt = slot, at
			}
		case e.owner() == k.owner():
			s.any = true
		}
	}
}

// cover lets o hold the blocks lo..hi-1 of a run that are there, and returns how
// many of them it held already.
func (x *Index) cover(o *owner, r runID, t kv.Tier, lo, hi int) (duplicates int) {
	k := key(o.id, t)
	s := x.survey(r, k, lo, hi)
	span := spanMask(lo, hi)
	if both := span.and(s.have); !both.empty() {
		fresh := span.without(s.have)
		for !fresh.empty() {
			a, b := fresh.popSpan()
			x.cover(o, r, t, a, b)
		}
		return both.count()
	}
	o.digest += x.digest(r, t, lo, hi)
	o.pairs += uint64(hi - lo)
	x.pairs += hi - lo
	switch {
	case s.left != nil && s.right != nil:
		whole := uint64(k) | uint64(entry(s.left.Load()).lo())<<8 | uint64(entry(s.right.Load()).hi())
		first, last := s.left, s.right
		if s.leftAt > s.rightAt {
			first, last = last, first
		}
		last.Store(whole)
		first.Store(0)
		x.runs.side(r).held--
		o.entries--
	case s.left != nil:
		s.left.Store(uint64(k) | uint64(entry(s.left.Load()).lo())<<8 | uint64(hi))
	case s.right != nil:
		s.right.Store(uint64(k) | uint64(lo)<<8 | uint64(entry(s.right.Load()).hi()))
	default:
		if s.free == nil {
			s.free = x.addSlot(r)
		}
		x.enter(o, r, s.free, k|entry(lo)<<8|entry(hi), !s.any)
	}
	return 0
}

// enter puts an entry into a free slot. first says that it is the owner's only
// one in this run.
func (x *Index) enter(o *owner, r runID, slot *atomic.Uint64, e entry, first bool) {
	slot.Store(uint64(e))
	x.runs.side(r).held++
	o.entries++
	if first {
		x.remember(o, r)
	}
}

// uncover takes the blocks lo..hi-1 of a run from o and returns those it held.
func (x *Index) uncover(o *owner, r runID, t kv.Tier, lo, hi int) mask {
	k := key(o.id, t)
	span := spanMask(lo, hi)
	var gone mask
	for walk := x.slots(r); ; {
		slot := walk.next()
		if slot == nil {
			break
		}
		e := entry(slot.Load())
		if e.key() != k || e.hi() <= lo || e.lo() >= hi {
			continue
		}
		gone = gone.or(span.and(e.mask()))
		if e.lo() < lo && e.hi() > hi {
			x.split(o, r, slot, walk, e, lo, hi)
			break
		}
		x.trim(o, r, slot, e, lo, hi)
		if gone == span {
			break
		}
	}
	n := gone.count()
	o.pairs -= uint64(n)
	x.pairs -= n
	for left := gone; !left.empty(); {
		a, b := left.popSpan()
		o.digest -= x.digest(r, t, a, b)
	}
	return gone
}

// trim takes lo..hi-1 from an entry of which at most one end is left.
func (x *Index) trim(o *owner, r runID, slot *atomic.Uint64, e entry, lo, hi int) {
	switch {
	case e.lo() < lo:
		slot.Store(uint64(e.key()) | uint64(e.lo())<<8 | uint64(lo))
	case e.hi() > hi:
		slot.Store(uint64(e.key()) | uint64(hi)<<8 | uint64(e.hi()))
	default:
		slot.Store(0)
		x.runs.side(r).held--
		o.entries--
	}
}

// split takes lo..hi-1 out of the middle of an entry. What lies behind goes to
// a slot behind, found with the rest of the walk.
func (x *Index) split(o *owner, r runID, slot *atomic.Uint64, rest slots, e entry, lo, hi int) {
	behind := rest.next()
	for behind != nil && behind.Load() != 0 {
		behind = rest.next()
	}
	if behind == nil {
		behind = x.addSlot(r)
	}
	x.enter(o, r, behind, e.key()|entry(hi)<<8|entry(e.hi()), false)
	slot.Store(uint64(e.key()) | uint64(e.lo())<<8 | uint64(lo))
}

// digest is the sum of kv.Digest over the blocks lo..hi-1 of a run.
func (x *Index) digest(r runID, t kv.Tier, lo, hi int) uint64 {
	return digest(x.arena.hashes(x.runs.head(r).storage())[lo:hi], t)
}

// digest is the sum of kv.Digest over hashes.
func digest(hashes []word, t kv.Tier) (sum uint64) {
	// Four at a time, the multiplications of one block do not wait for another's.
	for ; len(hashes) >= 4; hashes = hashes[4:] {
		h := (*[4]word)(hashes)
		a, b := kv.Digest(kv.SequenceHash(h[0]), t), kv.Digest(kv.SequenceHash(h[1]), t)
		sum += a + b + kv.Digest(kv.SequenceHash(h[2]), t) + kv.Digest(kv.SequenceHash(h[3]), t)
	}
	for _, h := range hashes {
		sum += kv.Digest(kv.SequenceHash(h), t)
	}
	return sum
}

// clearEntries takes all entries of an owner out of a run and returns how many.
func (x *Index) clearEntries(id ownerID, r runID) int {
	n := 0
	for walk := x.slots(r); ; {
		slot := walk.next()
		if slot == nil {
			break
		}
		if entry(slot.Load()).owner() == id {
			slot.Store(0)
			n++
		}
	}
	x.runs.side(r).held -= int32(n)
	return n
}
