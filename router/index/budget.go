package index

import (
	"math/bits"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// bytes is what the index takes, whether in use or kept for later.
func (x *Index) bytes() int64 {
	return x.arena.bytes() + x.runs.bytes() + int64(len(x.children.Load().slots))*8 + x.directory.bytes() + x.overflowBytes + x.listBytes
}

// idleBytes is the part of bytes that is kept for later.
func (x *Index) idleBytes() int64 {
	units := x.arena.idle + int(x.arena.end-x.arena.bump)
	slots := len(x.directory.slots) - x.directory.used*4/3
	return int64(units)*unitBytes + int64(len(x.runs.free))*runBytes + int64(max(slots, 0))*slotBytes
}

// The budget always has room for a directory of every block, because when blocks
// leave for lack of room, their owners name them in vain later, and then every
// block must be in it.

// mayGrow reports whether the budget has room for that many bytes more.
func (x *Index) mayGrow(bytes int64) bool {
	full := int64(x.arena.end) * unitBlocks * directoryBytes
	return x.bytes()+max(0, full-x.directory.bytes())+bytes <= x.options.MaxBytes
}

// need is what the index could not do without, if it kept nothing for later, and
// every block were in the directory.
func (x *Index) need() int64 {
	return int64(x.arena.used)*fullUnitBytes + int64(x.runs.live)*runBytes +
		int64(len(x.children.Load().slots))*8 + x.overflowBytes + x.listBytes
}

// units are those of the pieces that wait for readers to be gone.
func (l *limbo) units() (n int) {
	for _, list := range [][]retired{l.young, l.waiting} {
		for i := range list {
			n += int(list[i].class) // 0 for what is no piece
		}
	}
	return n
}

// fullUnitBytes is what a unit takes with its blocks' entries in a full directory.
const fullUnitBytes = unitBytes + unitBlocks*directoryBytes

// chunkShift is log2 of how many things of the given size a chunk holds: about
// 256 KiB, and less under a small budget.
func chunkShift(budget int64, size int, most uint) uint {
	n := min(budget/32, 256<<10) / int64(size)
	return min(uint(bits.Len64(uint64(max(n, 1)))-1), most)
}

// evictTries is how many runs the clock's hand passes for one change at most.
const evictTries = 1 << 12

// evict makes room: leaf runs go that no reader has come by since the clock's
// hand last did.
func (x *Index) evict() {
	limit := x.options.MaxBytes - x.options.MaxBytes/16
	over := x.need() - limit
	if over <= 0 {
		return
	}
	over -= int64(x.limbo.units()) * fullUnitBytes
	for tries := evictTries; over > 0 && tries > 0; tries-- {
		x.hand++
		if x.hand >= x.runs.unused {
			x.hand = rootRun + 1
		}
		if x.hand >= x.runs.unused {
			return
		}
		h, s := x.runs.head(x.hand), x.runs.side(x.hand)
		if !s.live || s.stub || s.firstChild != noRun {
			continue
		}
		if h.flags.Load()&flagSeen != 0 {
			h.flags.And(^flagSeen)
			continue
		}
		st := h.storage()
		over -= int64(st.class())*fullUnitBytes + runBytes
		x.evictRun(x.hand)
	}
}

// evictRun takes a leaf run from all who hold it.
func (x *Index) evictRun(r runID) {
	for walk := x.slots(r); ; {
		slot := walk.next()
		if slot == nil {
			break
		}
		e := entry(slot.Load())
		if e == 0 {
			continue
		}
		slot.Store(0)
		x.runs.side(r).held--
		if o := x.owners[e.owner()]; !o.gone {
			x.forfeit(o, r, e)
		}
	}
	x.prune(r)
}

// forfeit moves what an entry said from what its owner holds to what it lost.
func (x *Index) forfeit(o *owner, r runID, e entry) {
	n := e.hi() - e.lo()
	sum := x.digest(r, kv.Tier(e.tier()), e.lo(), e.hi())
	o.entries--
	o.digest -= sum
	o.pairs -= uint64(n)
	x.pairs -= n
	o.lostDigest += sum
	o.lostPairs += uint64(n)
	x.lost += n
	x.counts.Evicted += uint64(n)
}
