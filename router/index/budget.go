package index

import (
	"math/bits"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// bytes returns the memory of the index, in use or idle.
func (x *Index) bytes() int64 {
	return x.arena.Bytes() + x.runs.Bytes() + x.runs.ChildBytes() + x.directory.Bytes() +
		int64(len(x.orphans.byHash))*orphanBytes + x.runs.OverflowBytes + x.listBytes
}

// idleBytes returns the part of bytes that is free for new blocks.
func (x *Index) idleBytes() int64 {
	return int64(x.arena.Idle())*runs.UnitBytes + int64(x.runs.Idle())*runs.RunBytes + x.directory.IdleBytes()
}

// total returns bytes, with a directory of every block and a child table for every
// run that there is room for. The budget always leaves room for that directory:
// after evictions the owners remove blocks that the index no longer has, and then
// every block must be in the directory.
func (x *Index) total() int64 {
	full := int64(x.arena.Units()) * runs.UnitBlocks * runs.DirectoryBytes
	children := x.runs.Bytes() / runs.RunBytes * runs.MaxChildBytes
	return x.bytes() + max(0, full-x.directory.Bytes()) + max(0, children-x.runs.ChildBytes())
}

// mayGrow reports whether the budget has room for more bytes.
func (x *Index) mayGrow(bytes int64) bool { return x.total()+bytes <= x.options.MaxBytes }

// HasRoom reports whether a number of (block, tier) pairs fits twice without eviction.
func (x *Index) HasRoom(pairs uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	// total includes the directory of the idle units. The spare that evict keeps
	// free is idle but no room.
	units := int64(x.arena.Idle()) - 2*int64(x.arena.Units())/spareShare
	units += max(0, x.options.MaxBytes-x.total()) / (runs.FullUnitBytes + runs.RunBytes + runs.MaxChildBytes)
	return !x.memoryLow() && uint64(max(0, units))*runs.UnitBlocks/2 >= pairs
}

// chunkShift returns log2 of the number of things of a size in a chunk. A chunk has
// about 256 KiB, less under a small budget.
func chunkShift(budget int64, size int, most uint) uint {
	n := min(budget/32, 256<<10) / int64(size)
	return min(uint(bits.Len64(uint64(max(n, 1)))-1), most)
}

const (
	// evictTries is the most runs that one change looks at while there is still
	// room. evictMost is the most runs that one change evicts.
	evictTries = 1 << 12
	evictMost  = 64
	// spareShare is the part of the memory that is kept free for the next changes,
	// once memory cannot grow.
	spareShare = 32
)

// evict keeps a little memory free once memory cannot grow, so that the next change
// need not wait for readers.
func (x *Index) evict() {
	for tries, evicted := evictTries, 0; tries > 0 && evicted < evictMost && x.memoryLow(); tries-- {
		if x.advanceClock() {
			evicted++
		}
	}
}

// memoryLow reports whether less memory is free than evict keeps free, or overflow entries
// take too much of an index over its budget.
func (x *Index) memoryLow() bool {
	spare := x.options.MaxBytes - x.total()
	if spare < 0 && x.runs.OverflowBytes > x.options.MaxBytes/4 {
		return true
	}
	if spare < x.arena.ChunkUnits()*runs.FullUnitBytes && x.arena.Idle()+x.limbo.units < int(x.arena.Units())/spareShare {
		return true
	}
	return spare < x.runs.ChunkRuns()*(runs.RunBytes+runs.MaxChildBytes) && x.runs.Idle()+x.limbo.runs < int(x.runs.Unused)/spareShare
}

// advanceClock moves the clock hand to the next run. A leaf that no reader has touched
// since the last visit is evicted, and then advanceClock returns true.
func (x *Index) advanceClock() bool {
	if x.clockHand++; x.clockHand >= x.runs.Unused {
		x.clockHand = runs.Root + 1
	}
	if x.clockHand >= x.runs.Unused {
		return false
	}
	h, s := x.runs.Head(x.clockHand), x.runs.WriterState(x.clockHand)
	if !s.Live || s.StandIn || s.FirstChild != runs.None || x.clockHand == x.protected {
		return false
	}
	if h.Flags.Load()&runs.FlagSeen != 0 {
		h.Flags.And(^runs.FlagSeen)
		return false
	}
	x.evictRun(x.clockHand)
	return true
}

// takePiece returns memory for blocks, and evicts leaves if necessary. got is the class of
// the piece. got is smaller than class when the free memory is scattered, and 0 when there
// is no leaf to evict or readers may still reach the evicted memory.
func (x *Index) takePiece(class int) (unit uint32, got int) {
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

// newRun returns an unused run, and evicts leaves if necessary. newRun returns None when
// takePiece would return class 0.
func (x *Index) newRun() runs.ID {
	r := x.runs.Take(x.mayGrow)
	if r == runs.None {
		x.makeRoom(func() bool {
			r = x.runs.Take(x.mayGrow)
			return r != runs.None
		})
	}
	if r != runs.None {
		x.runs.WriterState(r).Listed = x.dense
	}
	return r
}

// maxEvictions is the most leaves that are evicted for one piece or run.
const maxEvictions = 512

// A reader that the kernel has suspended keeps everything that was evicted since
// the reader entered. The writer waits for such a reader for about one time slice,
// and looks again after each step.
const (
	maxReaderWait  = 50 * time.Millisecond
	readerWaitStep = 20 * time.Microsecond
)

// waitForReaders waits until at most the given number of units of evicted memory is in
// limbo, and reports whether that was reached. A suspended reader must neither empty the
// index nor block the writer. So after one wait that timed out, no call waits until those
// readers have left.
func (x *Index) waitForReaders(units int) bool {
	if x.limbo.units <= units {
		x.readersStalled = false
		return true
	}
	for until := time.Now().Add(maxReaderWait); !x.readersStalled; x.readersStalled = time.Now().After(until) {
		time.Sleep(readerWaitStep)
		if x.freeRetired(); x.limbo.units <= units {
			return true
		}
	}
	return false
}

// makeRoom evicts leaves until enough returns true. makeRoom returns false when too much
// evicted memory is in limbo, or after maxEvictions evictions.
func (x *Index) makeRoom(enough func() bool) bool {
	x.freeRetired()
	if enough() {
		return true
	}
	most := int(x.arena.Units())/16 + 4*runs.Classes
	for tries, evicted := 2*int(x.runs.Unused), 0; tries > 0 && evicted < maxEvictions; tries-- {
		if !x.waitForReaders(most) {
			return false
		}
		if !x.advanceClock() {
			continue
		}
		evicted++
		x.freeRetired()
		if enough() {
			return true
		}
	}
	return false
}

// evictRun removes a leaf run from all owners that hold its blocks and frees the run.
func (x *Index) evictRun(r runs.ID) {
	walk := x.runs.Slots(r)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		e := entry(slot.Load())
		if e == 0 {
			continue
		}
		slot.Store(0)
		x.runs.WriterState(r).EntryCount--
		if o := x.owners[e.owner()]; !o.gone {
			x.evictEntry(o, r, e.tier(), e.lo(), e.hi())
			o.entries--
		}
	}
	x.prune(r)
}

// evictEntry counts blocks lo..hi-1 of a run as lost by an owner that held the blocks. The
// caller changes the entry.
func (x *Index) evictEntry(o *owner, r runs.ID, t kv.Tier, lo, hi int) {
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

// SetMaxBytes replaces Options.MaxBytes, with a minimum of 128 KiB. An index above
// the new bound keeps its memory and evicts blocks for new ones.
func (x *Index) SetMaxBytes(most int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.options.MaxBytes = max(most, minBytes)
}

// Bytes returns the memory of the index, as in Stats.
func (x *Index) Bytes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytes()
}
