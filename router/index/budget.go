package index

import (
	"math/bits"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// bytes is what the index takes, whether in use or kept for later.
func (x *Index) bytes() int64 {
	return x.arena.Bytes() + x.runs.Bytes() + x.runs.ChildBytes() + x.directory.Bytes() +
		int64(len(x.orphans.byHash))*orphanBytes + x.runs.OverflowBytes + x.listBytes
}

// idleBytes is the part of bytes that is kept for later.
func (x *Index) idleBytes() int64 {
	return int64(x.arena.Idle())*runs.UnitBytes + int64(x.runs.Idle())*runs.RunBytes + x.directory.IdleBytes()
}

// The budget always has room for a directory of every block, because when blocks
// leave for lack of room, their owners name them in vain later, and then every
// block must be in it.

// total is bytes, with that directory and a child table for all runs that there
// is room for.
func (x *Index) total() int64 {
	full := int64(x.arena.Units()) * runs.UnitBlocks * runs.DirectoryBytes
	children := x.runs.Bytes() / runs.RunBytes * runs.MaxChildBytes
	return x.bytes() + max(0, full-x.directory.Bytes()) + max(0, children-x.runs.ChildBytes())
}

// mayGrow reports whether the budget has room for that many bytes more.
func (x *Index) mayGrow(bytes int64) bool { return x.total()+bytes <= x.options.MaxBytes }

// HasRoom reports whether so many (block, tier) pairs fit besides what there is, with
// as much again to spare, so that none of the others is evicted for them.
func (x *Index) HasRoom(pairs uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	// The directory of the idle units is part of total. What evict keeps free is idle
	// without being room.
	units := int64(x.arena.Idle()) - 2*int64(x.arena.Units())/spareShare
	units += max(0, x.options.MaxBytes-x.total()) / (runs.FullUnitBytes + runs.RunBytes + runs.MaxChildBytes)
	return !x.short() && uint64(max(0, units))*runs.UnitBlocks/2 >= pairs
}

// chunkShift is log2 of how many things of the given size a chunk holds: about
// 256 KiB, and less under a small budget.
func chunkShift(budget int64, size int, most uint) uint {
	n := min(budget/32, 256<<10) / int64(size)
	return min(uint(bits.Len64(uint64(max(n, 1)))-1), most)
}

const (
	// evictTries is how many runs the clock's hand passes for one change at most,
	// while there is still room, and evictMost how many of them it evicts.
	evictTries = 1 << 12
	evictMost  = 64
	// spareShare is the part of what there is that is kept free for the next
	// changes, once there can be no more of it.
	spareShare = 32
)

// evict keeps a little room free where memory may not grow any more, so that the
// next change need not wait for readers to be gone.
func (x *Index) evict() {
	for tries, evicted := evictTries, 0; tries > 0 && evicted < evictMost && x.short(); tries-- {
		if x.tick() {
			evicted++
		}
	}
}

// short reports whether there is less room than there should be.
func (x *Index) short() bool {
	spare := x.options.MaxBytes - x.total()
	if spare < 0 && x.runs.OverflowBytes > x.options.MaxBytes/4 {
		return true
	}
	if spare < x.arena.ChunkUnits()*runs.FullUnitBytes && x.arena.Idle()+x.limbo.units < int(x.arena.Units())/spareShare {
		return true
	}
	return spare < x.runs.ChunkRuns()*(runs.RunBytes+runs.MaxChildBytes) && x.runs.Idle()+x.limbo.runs < int(x.runs.Unused)/spareShare
}

// tick moves the clock's hand to the next run, and evicts it if it is a leaf that
// no reader has come by since the hand last did.
func (x *Index) tick() bool {
	if x.hand++; x.hand >= x.runs.Unused {
		x.hand = runs.Root + 1
	}
	if x.hand >= x.runs.Unused {
		return false
	}
	h, s := x.runs.Head(x.hand), x.runs.Side(x.hand)
	if !s.Live || s.StandIn || s.FirstChild != runs.None || x.hand == x.pinned {
		return false
	}
	if h.Flags.Load()&runs.FlagSeen != 0 {
		h.Flags.And(^runs.FlagSeen)
		return false
	}
	x.evictRun(x.hand)
	return true
}

// piece hands out a piece of memory, for which leaves are evicted if need be. It
// is of a smaller class when what was evicted lies too far apart, and of class 0
// when there are no leaves, or readers still hold what was evicted.
func (x *Index) piece(class int) (unit uint32, got int) {
	unit, ok := x.arena.Take(class, x.mayGrow)
	if !ok {
		ok = x.makeRoom(func() (ok bool) {
			unit, ok = x.arena.Take(class, x.mayGrow)
			return ok
		})
	}
	for ; !ok && class > 1; unit, ok = x.arena.Take(class, x.mayGrow) {
		class--
	}
	if !ok {
		return 0, 0
	}
	return unit, class
}

// newRun hands out a run as piece does a piece; noRun when there is none.
func (x *Index) newRun() runs.ID {
	r := x.runs.Take(x.mayGrow)
	if r == runs.None {
		x.makeRoom(func() bool {
			r = x.runs.Take(x.mayGrow)
			return r != runs.None
		})
	}
	if r != runs.None {
		x.runs.Side(r).Listed = x.dense
	}
	return r
}

// roomTries is how many leaves are evicted for one piece or run at most.
const roomTries = 512

// A reader that is not running keeps all that has been evicted since it entered.
// The writer waits for it, about as long as a processor is taken away from
// somebody, looking again after each pause.
const (
	patience = 50 * time.Millisecond
	pause    = 20 * time.Microsecond
)

// wait lets readers leave while much of what was evicted waits for them, and
// reports whether they have. One that stands still must neither empty the index
// nor stop it: after waiting in vain once, nobody waits until it has left.
func (x *Index) wait(most int) bool {
	if x.limbo.units <= most {
		x.tired = false
		return true
	}
	for until := time.Now().Add(patience); !x.tired; x.tired = time.Now().After(until) {
		time.Sleep(pause)
		if x.settle(); x.limbo.units <= most {
			return true
		}
	}
	return false
}

// makeRoom evicts leaves until enough is true, or too much of what was evicted
// waits for readers.
func (x *Index) makeRoom(enough func() bool) bool {
	x.settle()
	if enough() {
		return true
	}
	most := int(x.arena.Units())/16 + 4*runs.Classes
	for tries, evicted := 2*int(x.runs.Unused), 0; tries > 0 && evicted < roomTries; tries-- {
		if !x.wait(most) {
			return false
		}
		if !x.tick() {
			continue
		}
		evicted++
		x.settle()
		if enough() {
			return true
		}
	}
	return false
}

// evictRun takes a leaf run from all who hold it.
func (x *Index) evictRun(r runs.ID) {
	for walk := x.runs.Slots(r); ; {
		slot := walk.Next()
		if slot == nil {
			break
		}
		e := entry(slot.Load())
		if e == 0 {
			continue
		}
		slot.Store(0)
		x.runs.Side(r).Held--
		if o := x.owners[e.owner()]; !o.gone {
			x.forfeit(o, r, e.tier(), e.lo(), e.hi())
			o.entries--
		}
	}
	x.prune(r)
}

// forfeit moves blocks lo..hi-1 of a run from what their owner holds to what it
// lost.
func (x *Index) forfeit(o *owner, r runs.ID, t kv.Tier, lo, hi int) {
	n := hi - lo
	sum := x.digest(r, t, lo, hi)
	o.digest -= sum
	o.pairs -= uint64(n)
	x.pairs -= n
	o.lostDigest += sum
	o.lostPairs += uint64(n)
	x.lost += n
	x.counts.Evicted += uint64(n)
}

// SetMaxBytes replaces Options.MaxBytes, which is at least 128 KiB. An index that has
// more keeps its memory and takes no more: new blocks take the place of others.
func (x *Index) SetMaxBytes(most int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.options.MaxBytes = max(most, minBytes)
}

// Bytes is the memory of the index, as Stats has it.
func (x *Index) Bytes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytes()
}
