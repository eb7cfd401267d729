package index

// sweepRuns is how many runs of owners that are gone each change frees.
const sweepRuns = 4

// Sweep frees what removed owners left, looking at no more than the given
// number of runs, and reports whether there is more.
func (x *Index) Sweep(runs int) (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.settle()
	x.sweep(runs)
	x.settle()
	return len(x.sweeping) > 0 || x.limbo.len() > 0
}

func (x *Index) sweep(runs int) {
	for runs > 0 && len(x.sweeping) > 0 {
		o := x.owners[x.sweeping[len(x.sweeping)-1]]
		n := len(o.runs)
		if n == 0 {
			x.sweeping = x.sweeping[:len(x.sweeping)-1]
			x.listBytes -= int64(cap(o.runs)) * 4
			x.owners[o.id] = nil
			x.freeOwners = append(x.freeOwners, o.id)
			continue
		}
		r := o.runs[n-1]
		o.runs = o.runs[:n-1]
		runs--
		if x.runs.side(r).live && x.clearEntries(o.id, r) > 0 {
			x.prune(r)
		}
	}
}

// prune frees a run that nobody holds and nothing follows, and then perhaps the
// one before it.
func (x *Index) prune(r runID) {
	for r != rootRun {
		s := x.runs.side(r)
		if s.held > 0 || s.firstChild != noRun || r == x.pinned {
			return
		}
		if s.standIn {
			x.dropStandIn(r)
			return
		}
		r = x.freeRun(r)
	}
}

// freeRun takes a run without children out of the index and returns the one
// before it.
func (x *Index) freeRun(r runID) runID {
	p := x.detach(r)
	x.unmark(r, 0)
	x.discard(r)
	return p.run
}

// discard retires a run that is linked to nothing and not in the directory.
func (x *Index) discard(r runID) {
	h := x.runs.head(r)
	st := h.storage()
	x.resident -= st.blocks()
	h.store.Store(0)
	h.place.Store(0) // or who guesses at its next life would find it here
	x.retire(retiredPiece, st.unit(), st.class())
	x.dropSlots(r)
	c, i := x.runs.chunk(r)
	c.over[i].Store(nil)
	x.giveRun(r)
}

// giveRun retires a run that nothing names any more.
func (x *Index) giveRun(r runID) {
	x.runs.side(r).live = false
	x.runs.live--
	x.retire(retiredRun, uint32(r), 0)
}

// maxShrinking is how many runs wait to be looked at for blocks that nobody
// holds. Most of them are gone before their turn comes.
const maxShrinking = 512

// suspect queues a run that may have blocks at its end that nobody holds.
func (x *Index) suspect(r runID) {
	s := x.runs.side(r)
	if s.queued {
		return
	}
	s.queued = true
	x.shrinking = append(x.shrinking, r)
}

// shrinkSome looks at the runs that have waited longest.
func (x *Index) shrinkSome() {
	if len(x.shrinking) < maxShrinking {
		return
	}
	half := len(x.shrinking) / 2
	for _, r := range x.shrinking[:half] {
		s := x.runs.side(r)
		s.queued = false
		if s.live && !s.standIn {
			x.shrink(r)
		}
	}
	x.shrinking = append(x.shrinking[:0], x.shrinking[half:]...)
}

// shrink cuts off the blocks at the end of a run that nobody holds and nothing
// follows, if that frees memory.
func (x *Index) shrink(r runID) {
	h := x.runs.head(r)
	st := h.storage()
	used := 0
	for walk := x.slots(r); ; {
		slot := walk.next()
		if slot == nil {
			break
		}
		used = max(used, entry(slot.Load()).hi())
	}
	for c := x.runs.side(r).firstChild; c != noRun && classFor(used) < st.class(); c = x.runs.side(c).nextSibling {
		used = max(used, unpackPlace(x.runs.head(c).place.Load()).pos+1)
	}
	class := classFor(used)
	if used == 0 || class >= st.class() {
		return
	}
	x.move(r, class, used, st.version()+1)
}

// move copies the first n blocks of a run into a piece of another class. The
// old one stays as it is for those who are reading it.
func (x *Index) move(r runID, class, n, version int) bool {
	unit, ok := x.arena.take(class, x.mayGrow)
	if ok {
		x.moveTo(r, unit, class, n, version)
	}
	return ok
}

// moveTo is move to a piece that was taken already.
func (x *Index) moveTo(r runID, unit uint32, class, n, version int) {
	st := x.runs.head(r).storage()
	if n < st.blocks() {
		x.unmark(r, n)
		x.resident -= st.blocks() - n
	}
	fresh := packStorage(n, class, version, unit)
	copy(x.arena.locals(fresh), x.arena.locals(st))
	copy(x.arena.hashes(fresh), x.arena.hashes(st))
	x.runs.head(r).store.Store(uint64(fresh))
	x.retire(retiredPiece, st.unit(), st.class())
}

// classFor is the smallest class with room for n blocks.
func classFor(n int) int { return (n + unitBlocks - 1) / unitBlocks }
