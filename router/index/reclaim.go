package index

import "github.com/blockyard-ai/blockyard/router/index/runs"

// maintainBlocks is the number of changed blocks from which Apply calls maintain. limboBatch is the number of
// retired pieces, runs and owners from which maintain checks whether readers still use them.
const maintainBlocks, limboBatch = 8, 16

// maintain does a bounded part of the work that earlier changes left behind. Changes
// call it last. It shrinks runs, fills a directory that becomes dense, sweeps retired
// owners, frees retired memory and evicts. The caller holds x.mu.
func (x *Index) maintain() {
	x.unmaintained = 0
	x.shrinkSome()
	x.fillDirectory()
	if len(x.ownersToSweep) > 0 {
		x.sweep(sweepRuns)
	}
	if x.limbo.len() >= limboBatch {
		x.freeRetired()
	}
	x.evict()
}

// sweepRuns is the number of runs of retired owners that each change sweeps.
const sweepRuns = 4

// Sweep frees memory that removed owners still occupy. It looks at no more than maxRuns runs,
// so that writers wait only briefly, and reports whether there is more to free. Every change
// sweeps a few runs too.
func (x *Index) Sweep(maxRuns int) (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.freeRetired()
	x.sweep(maxRuns)
	x.freeRetired()
	return len(x.ownersToSweep) > 0 || x.limbo.len() > 0
}

// sweep removes the entries of retired owner ids from no more than maxRuns runs, and frees
// runs that nobody holds any more. An id without entries may be used again.
func (x *Index) sweep(maxRuns int) {
	for maxRuns > 0 && len(x.ownersToSweep) > 0 {
		o := x.owners[x.ownersToSweep[len(x.ownersToSweep)-1]]
		n := len(o.runs)
		if n == 0 {
			x.ownersToSweep = x.ownersToSweep[:len(x.ownersToSweep)-1]
			x.ownerRunsBytes -= int64(cap(o.runs)) * runIDBytes
			if o.sparse.HeldPairs > 0 {
				x.sparse.DropOwner(uint32(o.id))
			}
			x.owners[o.id] = nil
			x.freeOwners = append(x.freeOwners, o.id)
			continue
		}
		r := o.runs[n-1]
		o.runs = o.runs[:n-1]
		maxRuns--
		if x.runs.WriterState(r).Live && x.clearEntries(o.id, r) > 0 {
			x.freeIfUnused(r)
		}
	}
}

// freeIfUnused frees run r if no owner holds its blocks and no run follows it. Then it does the same
// for the parent of r, and so on up to the root. The run x.protectedRun stays, because the
// current change is about to extend it.
func (x *Index) freeIfUnused(r runs.ID) {
	for r != runs.Root {
		s := x.runs.WriterState(r)
		if s.EntryCount > 0 || s.FirstChild != runs.None || r == x.protectedRun {
			return
		}
		if s.StandIn { // of an unknown parent that no block waits for any more
			x.dropStandIn(r)
			return
		}
		r = x.freeRun(r)
	}
}

// freeRun removes a run without children and returns its parent.
func (x *Index) freeRun(r runs.ID) runs.ID {
	p := x.runs.Detach(r)
	x.unlist(r, 0)
	x.retireRunWithMemory(r)
	return p.Run
}

// retireRunWithMemory retires run r and its memory: both are reused once no reader can reach
// them. The run is detached from its parent, and its blocks are not in the directory.
func (x *Index) retireRunWithMemory(r runs.ID) {
	h := x.runs.Head(r)
	st := h.Storage()
	x.blocksInRuns -= st.Blocks()
	h.Store.Store(0)
	h.Parent.Store(0) // a stale Head.NextGuess must not find this parent when the run is used again
	x.retire(retiredPiece, st.FirstUnit(), st.Units())
	x.runs.DropOverflow(r)
	x.retireRun(r)
}

// retireRun retires a run that nothing refers to.
func (x *Index) retireRun(r runs.ID) {
	x.runs.Drop(r)
	x.retire(retiredRun, uint32(r), 0)
}

// maxShrinking is the number of runs that wait to be checked for unused blocks.
const maxShrinking = 512

// queueShrink queues a run that may have unused blocks at its end.
func (x *Index) queueShrink(r runs.ID) {
	s := x.runs.WriterState(r)
	if s.QueuedForShrink {
		return
	}
	s.QueuedForShrink = true
	x.runsToShrink = append(x.runsToShrink, r)
}

// shrinkSome cuts unused blocks off the runs that removals have queued. It waits until
// maxShrinking runs are queued, and then handles the older half. Most of them are freed by
// then.
func (x *Index) shrinkSome() {
	if len(x.runsToShrink) < maxShrinking {
		return
	}
	half := len(x.runsToShrink) / 2
	for _, r := range x.runsToShrink[:half] {
		s := x.runs.WriterState(r)
		s.QueuedForShrink = false
		if s.Live && !s.StandIn {
			x.shrink(r)
		}
	}
	x.runsToShrink = append(x.runsToShrink[:0], x.runsToShrink[half:]...)
}

// shrink cuts the unused blocks off the end of run r, a row of blocks, if the rest fits into
// a smaller piece of memory. An unused block has no owner, and no run follows it.
func (x *Index) shrink(r runs.ID) {
	h := x.runs.Head(r)
	st := h.Storage()
	used := 0
	walk := x.runs.Slots(r)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		used = max(used, entry(slot.Load()).hi())
	}
	// The loop over the children ends early when nothing can be saved any more.
	for c := x.runs.WriterState(r).FirstChild; c != runs.None && runs.UnitsFor(used) < st.Units(); c = x.runs.WriterState(c).NextSibling {
		used = max(used, runs.UnpackPlace(x.runs.Head(c).Parent.Load()).Pos+1)
	}
	units := runs.UnitsFor(used)
	if used == 0 || units >= st.Units() {
		return
	}
	// The new version tells readers that blocks were cut off. Without memory the run stays.
	x.move(r, units, used, st.Version()+1)
}

// move moves the first n blocks of run r into other memory, a piece of that many units, and
// reports whether there was memory. The old piece stays unchanged until its readers have
// left. version is the new version of the storage: the caller adds 1 when blocks are cut
// off.
func (x *Index) move(r runs.ID, units, n, version int) bool {
	firstUnit, ok := x.arena.Take(units, x.mayGrow)
	if ok {
		x.moveTo(r, firstUnit, units, n, version)
	}
	return ok
}

// moveTo moves the first n blocks of run r into new memory that the caller has taken: units of
// UnitBlocks blocks from firstUnit on. Other blocks leave the run. version is the new version
// of the run's storage. Readers may still read the old memory, so moveTo copies it and retires it.
func (x *Index) moveTo(r runs.ID, firstUnit uint32, units, n, version int) {
	st := x.runs.Head(r).Storage()
	if n < st.Blocks() {
		x.unlist(r, n)
		x.blocksInRuns -= st.Blocks() - n
	}
	fresh := runs.PackStorage(n, units, version, firstUnit)
	copy(x.arena.Locals(fresh), x.arena.Locals(st))
	copy(x.arena.Hashes(fresh), x.arena.Hashes(st))
	x.runs.Head(r).Store.Store(uint64(fresh))
	x.retire(retiredPiece, st.FirstUnit(), st.Units())
}

// retired is an unlinked piece, run or owner that readers may still reach.
type retired struct {
	kind retiredKind
	// units is the size of a piece.
	units uint8
	// id is the first unit of a piece, the ID of a run, or the ownerID of an owner.
	id uint32
}

type retiredKind uint8

const (
	retiredPiece retiredKind = iota
	retiredRun
	retiredOwner
)

// limbo keeps retired pieces, runs and owners until no reader can reach them. New ones
// gather in young while those in waiting wait for a grace period.
type limbo struct {
	young, waiting []retired
	// epochEnded is true once the writer has begun a new epoch for waiting.
	epochEnded bool
	// units counts the units of the retired pieces, runs the retired runs.
	units, runs int
}

// len returns the number of retired pieces, runs and owners.
func (l *limbo) len() int { return len(l.young) + len(l.waiting) }

// retire frees a piece of memory, a run or an owner id later, once no reader can reach it.
// The caller has unlinked it, so that new readers cannot find it. id is its number, as in
// retired. units is the size of a piece in units, 0 for other kinds.
func (x *Index) retire(kind retiredKind, id uint32, units int) {
	x.limbo.young = append(x.limbo.young, retired{kind, uint8(units), id})
	x.limbo.units += units
	if kind == retiredRun {
		x.limbo.runs++
	}
}

// freeRetired frees what was retired and what no reader can reach any more. It never waits:
// while a reader from an earlier epoch is inside, it returns, and a later call goes on. The
// two checks for readers, one in each epoch, are the grace period: see runs.Readers.
func (x *Index) freeRetired() {
	l := &x.limbo
	for l.len() > 0 {
		if len(l.waiting) == 0 {
			l.waiting, l.young, l.epochEnded = l.young, l.waiting[:0], false
		}
		epoch := x.readers.Epoch()
		if !x.readers.Empty(epoch - 1) {
			return
		}
		if !l.epochEnded {
			// Readers of this epoch may have entered before the retirement. Begin a new epoch,
			// and wait for them too.
			x.readers.BeginEpoch()
			l.epochEnded = true
			continue
		}
		for _, r := range l.waiting {
			x.free(r)
		}
		l.waiting = l.waiting[:0]
	}
}

// free makes a retired piece or run available for new blocks, and lets the sweep remove the
// entries of a retired owner id. No reader can reach r any more.
func (x *Index) free(r retired) {
	switch r.kind {
	case retiredPiece:
		x.limbo.units -= int(r.units)
		x.arena.Give(r.id, int(r.units))
	case retiredRun:
		x.limbo.runs--
		x.runs.Free(runs.ID(r.id))
	case retiredOwner:
		x.ownersToSweep = append(x.ownersToSweep, ownerID(r.id))
	}
}
