package index

import "github.com/blockyard-ai/blockyard/router/index/runs"

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
	return len(x.sweeping) > 0 || x.limbo.len() > 0
}

// sweep removes the entries of retired owner ids from no more than maxRuns runs, and frees
// runs that nobody holds any more. An id without entries may be used again.
func (x *Index) sweep(maxRuns int) {
	for maxRuns > 0 && len(x.sweeping) > 0 {
		o := x.owners[x.sweeping[len(x.sweeping)-1]]
		n := len(o.runs)
		if n == 0 {
			x.sweeping = x.sweeping[:len(x.sweeping)-1]
			x.listBytes -= int64(cap(o.runs)) * runIDBytes
			x.owners[o.id] = nil
			x.freeOwners = append(x.freeOwners, o.id)
			continue
		}
		r := o.runs[n-1]
		o.runs = o.runs[:n-1]
		maxRuns--
		if x.runs.WriterState(r).Live && x.clearEntries(o.id, r) > 0 {
			x.prune(r)
		}
	}
}

// prune frees run r if no owner holds its blocks and no run follows it. Then it does the same
// for the parent of r, and so on up to the root. The run x.protected stays, because the
// current change is about to extend it.
func (x *Index) prune(r runs.ID) {
	for r != runs.Root {
		s := x.runs.WriterState(r)
		if s.EntryCount > 0 || s.FirstChild != runs.None || r == x.protected {
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
	x.unmark(r, 0)
	x.discard(r)
	return p.Run
}

// discard retires run r and its memory: both are reused once no reader can reach them. The
// run is detached from its parent, and its blocks are not in the directory.
func (x *Index) discard(r runs.ID) {
	h := x.runs.Head(r)
	st := h.Storage()
	x.resident -= st.Blocks()
	h.Store.Store(0)
	h.Parent.Store(0) // a stale Head.Next must not find this parent when the run is used again
	x.retire(retiredPiece, st.Unit(), st.Class())
	x.runs.DropOverflow(r)
	x.giveRun(r)
}

// giveRun retires a run that nothing refers to.
func (x *Index) giveRun(r runs.ID) {
	x.runs.Drop(r)
	x.retire(retiredRun, uint32(r), 0)
}

// maxShrinking is the number of runs that wait to be checked for unused blocks.
const maxShrinking = 512

// queueShrink queues a run that may have unused blocks at its end.
func (x *Index) queueShrink(r runs.ID) {
	s := x.runs.WriterState(r)
	if s.Queued {
		return
	}
	s.Queued = true
	x.shrinking = append(x.shrinking, r)
}

// shrinkSome cuts unused blocks off the runs that removals have queued. It waits until
// maxShrinking runs are queued, and then handles the older half. Most of them are freed by
// then.
func (x *Index) shrinkSome() {
	if len(x.shrinking) < maxShrinking {
		return
	}
	half := len(x.shrinking) / 2
	for _, r := range x.shrinking[:half] {
		s := x.runs.WriterState(r)
		s.Queued = false
		if s.Live && !s.StandIn {
			x.shrink(r)
		}
	}
	x.shrinking = append(x.shrinking[:0], x.shrinking[half:]...)
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
	for c := x.runs.WriterState(r).FirstChild; c != runs.None && runs.ClassFor(used) < st.Class(); c = x.runs.WriterState(c).NextSibling {
		used = max(used, runs.UnpackPlace(x.runs.Head(c).Parent.Load()).Pos+1)
	}
	class := runs.ClassFor(used)
	if used == 0 || class >= st.Class() {
		return
	}
	// The new version tells readers that blocks were cut off.
	x.move(r, class, used, st.Version()+1)
}

// move moves the first n blocks of run r into other memory, a piece of class units, and
// reports whether there was memory. The old piece stays unchanged until its readers have
// left. version is the new version of the storage: the caller adds 1 when blocks are cut
// off.
func (x *Index) move(r runs.ID, class, n, version int) bool {
	unit, ok := x.arena.Take(class, x.mayGrow)
	if ok {
		x.moveTo(r, unit, class, n, version)
	}
	return ok
}

// moveTo moves the first n blocks of run r into new memory that the caller has taken: class
// units from unit on. Other blocks leave the run. version is the new version of the run's
// storage. Readers may still read the old memory, so moveTo copies it and retires it.
func (x *Index) moveTo(r runs.ID, unit uint32, class, n, version int) {
	st := x.runs.Head(r).Storage()
	if n < st.Blocks() {
		x.unmark(r, n)
		x.resident -= st.Blocks() - n
	}
	fresh := runs.PackStorage(n, class, version, unit)
	copy(x.arena.Locals(fresh), x.arena.Locals(st))
	copy(x.arena.Hashes(fresh), x.arena.Hashes(st))
	x.runs.Head(r).Store.Store(uint64(fresh))
	x.retire(retiredPiece, st.Unit(), st.Class())
}

// retired is an unlinked piece, run or owner that readers may still reach.
type retired struct {
	kind retiredKind
	// class is the class of a piece.
	class uint8
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
// retired. class is the size of a piece in units, 0 for other kinds.
func (x *Index) retire(kind retiredKind, id uint32, class int) {
	x.limbo.young = append(x.limbo.young, retired{kind, uint8(class), id})
	x.limbo.units += class
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
		x.limbo.units -= int(r.class)
		x.arena.Give(r.id, int(r.class))
	case retiredRun:
		x.limbo.runs--
		x.runs.Free(runs.ID(r.id))
	case retiredOwner:
		x.sweeping = append(x.sweeping, ownerID(r.id))
	}
}
