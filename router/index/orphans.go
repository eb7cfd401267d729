package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// orphans are the unknown parents that blocks wait for. Each has a run without
// blocks as its stand-in: what follows it is not reachable from the root until
// the parent comes.
type orphans struct {
	byHash map[kv.SequenceHash]runID
	hashOf map[runID]kv.SequenceHash
	// filter has a bit for each parent, so that new blocks are looked up in
	// byHash only when they may be one.
	filter [1 << 10]uint64
	// filtered counts the parents that were ever entered into filter as it is.
	filtered int
}

// dumpParked is how many unknown parents more there may be while a dump is
// applied.
const dumpParked = 1 << 20

// orphanBytes is about what an unknown parent takes besides its run.
const orphanBytes = 96

func newOrphans() orphans {
	return orphans{byHash: make(map[kv.SequenceHash]runID), hashOf: make(map[runID]kv.SequenceHash)}
}

func (o *orphans) bit(h kv.SequenceHash) (*uint64, uint64) {
	v := mixHash(h) >> 48
	return &o.filter[v>>6], 1 << (v & 63)
}

// awaited is the stand-in for a block that somebody waits for.
func (o *orphans) awaited(h kv.SequenceHash) runID {
	if w, bit := o.bit(h); *w&bit == 0 {
		return noRun
	}
	return o.byHash[h]
}

// standIn is the place that children of the unknown block h are put behind;
// false when there are too many such blocks.
func (x *Index) standIn(h kv.SequenceHash) (place, bool) {
	if r := x.orphans.awaited(h); r != noRun {
		return place{r, 0}, true
	}
	// The blocks of a dump come in any order: many may wait until it is over.
	most := x.options.MaxParked
	if x.replacing {
		most += dumpParked
	}
	if len(x.orphans.byHash) >= most {
		return place{}, false
	}
	r := x.newRun()
	if r == noRun {
		return place{}, false
	}
	x.runs.side(r).standIn = true
	x.orphans.byHash[h], x.orphans.hashOf[r] = r, h
	x.orphans.note(h)
	return place{r, 0}, true
}

// note enters a parent into the filter, which is made anew when most of those in
// it are gone.
func (o *orphans) note(h kv.SequenceHash) {
	w, bit := o.bit(h)
	*w |= bit
	if o.filtered++; o.filtered < 4*len(o.byHash)+len(o.filter) {
		return
	}
	o.filtered = len(o.byHash)
	clear(o.filter[:])
	for h := range o.byHash {
		w, bit := o.bit(h)
		*w |= bit
	}
}

// dropStandIn forgets a stand-in that nothing follows.
func (x *Index) dropStandIn(r runID) {
	delete(x.orphans.byHash, x.orphans.hashOf[r])
	delete(x.orphans.hashOf, r)
	if len(x.orphans.byHash) == 0 {
		clear(x.orphans.filter[:])
		x.orphans.filtered = 0
	}
	x.giveRun(r)
}

// untilAwaited is how many of the blocks, all of them new, come before and with
// the first that others wait for.
func (x *Index) untilAwaited(n int, hash func(i int) kv.SequenceHash) int {
	if len(x.orphans.byHash) == 0 {
		return n
	}
	for i := range n {
		if x.orphans.awaited(hash(i)) != noRun {
			return i + 1
		}
	}
	return n
}

// adopt puts what waited for block p, which is new, behind it.
func (x *Index) adopt(p place, h kv.SequenceHash) {
	if len(x.orphans.byHash) == 0 {
		return
	}
	standIn := x.orphans.awaited(h)
	if standIn == noRun || x.top(p.run) == standIn {
		return // a block that follows itself is nobody's parent
	}
	for c := x.runs.side(standIn).firstChild; c != noRun; c = x.runs.side(standIn).firstChild {
		x.detach(c)
		if !x.absorb(p, c) {
			x.attach(c, p)
		}
		x.counts.Spliced++
	}
	x.dropStandIn(standIn)
}

// absorbBlocks is how many blocks are moved at most when their parent comes. Whole
// runs would be moved over and over by blocks that come backwards.
const absorbBlocks = 32

// absorb makes the blocks of run c, which was detached and which no reader could
// ever reach, part of the run that ends with block p, so that blocks which came
// one by one and backwards end up in runs all the same. It returns false when
// they are too many or do not fit.
func (x *Index) absorb(p place, c runID) bool {
	from := x.runs.head(c).storage()
	s := x.runs.head(p.run).storage()
	old := s.blocks()
	if from.blocks() > absorbBlocks || p.pos != old-1 || old+from.blocks() > runBlocks || !x.room(p.run, s, from.blocks()) {
		return false
	}
	// room may have given the run another piece.
	s = x.runs.head(p.run).storage() + storage(from.blocks())
	copy(x.arena.locals(s)[old:], x.arena.locals(from))
	copy(x.arena.hashes(s)[old:], x.arena.hashes(from))
	x.runs.head(p.run).store.Store(uint64(s))
	x.resident += from.blocks()
	marks := x.runs.side(c).marks
	marks.set(from.blocks() - 1) // owners may remember it as where they were
	x.unmark(c, 0)
	x.enlist(p.run, old)
	for !marks.empty() {
		at := place{p.run, old + marks.pop()}
		x.mark(at, x.hashAt(at))
	}
	for walk := x.slots(c); ; {
		slot := walk.next()
		if slot == nil {
			break
		}
		if e := entry(slot.Load()); e != 0 {
			x.passOn(e, c, p.run, old)
			slot.Store(0)
		}
	}
	for g := x.runs.side(c).firstChild; g != noRun; g = x.runs.side(c).firstChild {
		at := x.detach(g)
		x.attach(g, place{p.run, old + at.pos})
	}
	x.discard(c)
	return true
}

// passOn lets the owner of an entry of run c hold the same blocks in run r, where
// they begin at position by.
func (x *Index) passOn(e entry, c, r runID, by int) {
	x.runs.side(c).held--
	o := x.owners[e.owner()]
	if o.gone {
		return
	}
	n := e.hi() - e.lo()
	o.entries--
	o.digest -= x.digest(c, e.tier(), e.lo(), e.hi())
	o.pairs -= uint64(n)
	x.pairs -= n
	x.cover(o, r, e.tier(), by+e.lo(), by+e.hi())
}

// dropParked evicts what waits for unknown parents until there are no more of them
// than there may be.
func (x *Index) dropParked() {
	for r := range x.orphans.hashOf {
		if len(x.orphans.byHash) <= x.options.MaxParked {
			return
		}
		for x.runs.side(r).live && x.runs.side(r).firstChild != noRun {
			x.evictTree(x.runs.side(r).firstChild)
		}
	}
}

// top is the root or stand-in from which run r hangs.
func (x *Index) top(r runID) runID {
	for r != rootRun && !x.runs.side(r).standIn {
		r = unpackPlace(x.runs.head(r).place.Load()).run
	}
	return r
}
