package index

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// bytes returns the bytes that the index occupies now, in use or idle.
func (x *Index) bytes() int64 {
	return x.arena.Bytes() + x.runs.Bytes() + x.runs.ChildBytes() + x.directory.Bytes() +
		x.unknownParents.Bytes() + x.runs.OverflowBytes + x.ownerRunsBytes + x.sparse.Bytes()
}

// idleBytes returns the allocated bytes that are free for new blocks.
func (x *Index) idleBytes() int64 {
	return int64(x.arena.Idle())*runs.UnitBytes + int64(x.runs.Idle())*runs.RunBytes + x.directory.IdleBytes()
}

// total returns the bytes that the index would occupy if its allocated memory were full of
// blocks: bytes, plus the missing part of a directory of every block and of the table of
// children. The budget reserves that directory: owners remove evicted blocks too, and only
// a directory of every block tells cheaply that the index no longer has such a block.
func (x *Index) total() int64 {
	fullDirectory := int64(x.arena.Units()) * runs.UnitBlocks * runs.DirectoryBytes
	fullChildren := x.runs.Bytes() / runs.RunBytes * runs.MaxChildBytes
	return x.bytes() + max(0, fullDirectory-x.directory.Bytes()) + max(0, fullChildren-x.runs.ChildBytes())
}

// mayGrow reports whether the budget has room for more bytes.
func (x *Index) mayGrow(bytes int64) bool { return x.total()+bytes <= x.options.MaxBytes }

// HasRoom reports whether the index could store twice that many more (block, tier) pairs
// without eviction. Feeds ask before they fetch an owner's lost blocks again. The factor of
// two is a reserve, so that the lost blocks do not evict the blocks of others.
func (x *Index) HasRoom(pairs uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	// A unit is memory for UnitBlocks blocks. The spare units that evict keeps free are
	// idle, but not room for new blocks.
	units := int64(x.arena.Idle()) - 2*int64(x.arena.Units())/spareShare
	// Units that the index may still allocate. total counts the directory of idle units.
	units += max(0, x.options.MaxBytes-x.total()) / (runs.FullUnitBytes + runs.RunBytes + runs.MaxChildBytes)
	return !x.memoryLow() && uint64(max(0, units))*runs.UnitBlocks/2 >= pairs
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

// evict frees a little memory ahead of the next change when the budget is used up. Evicted
// memory is reusable only after its readers have left, so the next change would have to
// wait otherwise. One call evicts at most evictMost runs.
func (x *Index) evict() {
	for tries, evicted := evictTries, 0; tries > 0 && evicted < evictMost && x.memoryLow(); tries-- {
		if x.advanceClock() {
			evicted++
		}
	}
}

// memoryLow reports whether evict must evict runs. Memory for blocks or for runs is low when
// the budget has no room for another chunk and less than 1/spareShare of it is free. Memory
// in limbo, which becomes free when its readers leave, counts as free. The entries of an
// index over its budget are also too many when their overflow takes a quarter of the budget.
func (x *Index) memoryLow() bool {
	// The budget is compared last, because every change asks.
	fewUnits := x.arena.Idle()+x.limbo.units < int(x.arena.Units())/spareShare
	fewRuns := x.runs.Idle()+x.limbo.runs < int(x.runs.Unused)/spareShare
	muchOverflow := x.runs.OverflowBytes > x.options.MaxBytes/4
	if !fewUnits && !fewRuns && !muchOverflow {
		return false
	}
	left := x.options.MaxBytes - x.total()
	return muchOverflow && left < 0 ||
		fewUnits && left < x.arena.ChunkUnits()*runs.FullUnitBytes ||
		fewRuns && left < x.runs.ChunkRuns()*(runs.RunBytes+runs.MaxChildBytes)
}

// advanceClock is one step of CLOCK eviction. It moves the clock hand to the next run, and
// returns true if it evicts that run. It evicts a leaf, a run that no other run follows,
// unless a reader or a store has touched the leaf since the hand's last visit.
func (x *Index) advanceClock() bool {
	if x.clockHand++; x.clockHand >= x.runs.Unused {
		x.clockHand = runs.Root + 1
	}
	if x.clockHand >= x.runs.Unused { // the index has no run but the root
		return false
	}
	h, s := x.runs.Head(x.clockHand), x.runs.WriterState(x.clockHand)
	if !s.Live || s.StandIn || s.FirstChild != runs.None || x.clockHand == x.protectedRun {
		return false
	}
	if h.Flags.Load()&runs.FlagSeen != 0 {
		h.Flags.And(^runs.FlagSeen) // the run's second chance
		return false
	}
	x.evictRun(x.clockHand)
	return true
}

// takePiece allocates memory for the blocks of a run, and evicts leaf runs if necessary. It
// returns the piece's first unit and its size. A unit is memory for UnitBlocks blocks. got
// is smaller than units when the free memory is fragmented. got is 0 when no leaf is left to
// evict, or while readers may still reach the evicted memory.
func (x *Index) takePiece(units int) (firstUnit uint32, got int) {
	firstUnit, ok := x.arena.Take(units, x.mayGrow)
	if !ok {
		ok = x.makeRoom(func() (ok bool) {
			firstUnit, ok = x.arena.Take(units, x.mayGrow)
			return ok
		})
	}
	for ; !ok && units > 1; firstUnit, ok = x.arena.Take(units, x.mayGrow) {
		units-- // the free memory may come in smaller pieces only
	}
	if !ok {
		return 0, 0
	}
	return firstUnit, units
}

// newRun allocates a run without blocks, and evicts leaf runs if necessary. newRun returns
// None when no leaf is left to evict, or while readers may still reach the evicted runs.
func (x *Index) newRun() runs.ID {
	r := x.runs.Take(x.mayGrow)
	if r == runs.None {
		x.makeRoom(func() bool {
			r = x.runs.Take(x.mayGrow)
			return r != runs.None
		})
	}
	if r != runs.None {
		// A dense directory has every block, so listNewBlocks must enter the blocks of this run.
		x.runs.WriterState(r).AllListed = x.denseDirectory
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

// waitForReaders waits until at most maxUnits units of evicted memory are in limbo, where
// readers may still reach them. It returns false after maxReaderWait. A suspended reader
// must neither empty the index nor block the writer. So after a timeout, calls return at
// once until limbo has shrunk.
func (x *Index) waitForReaders(maxUnits int) bool {
	if x.limbo.units <= maxUnits {
		x.readersStalled = false
		return true
	}
	for until := time.Now().Add(maxReaderWait); !x.readersStalled; x.readersStalled = time.Now().After(until) {
		time.Sleep(readerWaitStep)
		if x.freeRetired(); x.limbo.units <= maxUnits {
			return true
		}
	}
	return false
}

// makeRoom evicts leaf runs until enough returns true. enough tries the allocation again
// after each eviction. makeRoom returns false when readers keep too much evicted memory in
// limbo, after maxEvictions evictions, or when two rounds of the clock found no leaf.
func (x *Index) makeRoom(enough func() bool) bool {
	x.freeRetired()
	if enough() {
		return true
	}
	// Memory that a slow reader holds stays in limbo, so eviction would go on until the index
	// is empty. It waits for readers at 1/16 of the index, or at four large pieces.
	maxLimbo := int(x.arena.Units())/16 + 4*runs.MaxPieceUnits
	for tries, evicted := 2*int(x.runs.Unused), 0; tries > 0 && evicted < maxEvictions; tries-- {
		if !x.waitForReaders(maxLimbo) {
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

// evictRun frees run r, a row of blocks that no other run follows. Its owners then count
// these blocks as lost, so that their digests, checksums of what they hold, still match.
func (x *Index) evictRun(r runs.ID) {
	walk := x.runs.Slots(r)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		e := entry(slot.Load())
		if e == 0 {
			continue
		}
		slot.Store(0)
		x.runs.WriterState(r).EntryCount--
		// The pairs of a retired owner no longer count.
		if o := x.owners[e.owner()]; !o.retired {
			x.evictEntry(o, r, e.tier(), e.lo(), e.hi())
			o.entryCount--
		}
	}
	x.freeIfUnused(r)
}

// evictEntry counts blocks lo..hi-1 of run r in tier t as lost by owner o, who held them. It
// changes the sums only: the numbers of (block, tier) pairs, and the digests, checksums of
// the held and of the lost pairs. The caller shortens or clears the owner's entry.
func (x *Index) evictEntry(o *owner, r runs.ID, t kv.Tier, lo, hi int) {
	n := hi - lo
	sum := x.digest(r, t, lo, hi)
	o.heldDigest -= sum
	o.heldPairs -= uint64(n)
	x.heldPairs -= n
	o.lostDigest += sum
	o.lostPairs += uint64(n)
	x.lostPairs += n
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
