package index

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// uproot settles a conflict: the block at a place, which follows p, has the local
// hash of b and another sequence hash. One of the two is wrong. Blocks are not
// checked when they come, because that would cost more than storing them; so it
// is done now. When it is the block that was there, it leaves with all that
// follows it, from all who hold it, and uproot returns true: its place is free.
func (x *Index) uproot(p, at place, b kvevent.StoredBlock) bool {
	x.counts.Conflicts++
	right := kv.SequenceHash(b.Local)
	if p.run != rootRun {
		right = kv.Chain(x.hashAt(p), b.Local)
	}
	if b.Hash != right {
		return false
	}
	x.pinned = p.run
	r := at.run
	for c := x.childFrom(r, at.pos); c != noRun; c = x.childFrom(r, at.pos) {
		x.evictTree(c)
	}
	if at.pos == 0 {
		if x.runs.side(r).live { // it went with what followed it if nobody held it
			x.evictRun(r)
		}
		return true
	}
	return x.cutOff(r, at.pos)
}

// childFrom is a run that follows a block of r at position pos or later.
func (x *Index) childFrom(r runID, pos int) runID {
	c := x.runs.side(r).firstChild
	for c != noRun && unpackPlace(x.runs.head(c).place.Load()).pos < pos {
		c = x.runs.side(c).nextSibling
	}
	return c
}

// evictTree takes a run and all that follows it from all who hold them, leaves
// first.
func (x *Index) evictTree(r runID) {
	for x.runs.side(r).live {
		leaf := r
		for c := x.runs.side(r).firstChild; c != noRun; c = x.runs.side(c).firstChild {
			leaf = c
		}
		x.evictRun(leaf)
	}
}

// cutOff takes the blocks of a run from position pos on, which nothing follows,
// from all who hold them, and removes them. It returns false when there is no
// memory for what is left.
func (x *Index) cutOff(r runID, pos int) bool {
	for walk := x.slots(r); ; {
		slot := walk.next()
		if slot == nil {
			break
		}
		e := entry(slot.Load())
		if e == 0 || e.hi() <= pos {
			continue
		}
		o := x.owners[e.owner()]
		if !o.gone {
			x.forfeit(o, r, e.tier(), max(e.lo(), pos), e.hi())
		}
		x.cut(o, r, slot, walk, e, e.mask().and(spanMask(0, pos)))
	}
	class := classFor(pos)
	unit, got := x.piece(class)
	if got == class {
		x.moveTo(r, unit, class, pos, x.runs.head(r).storage().version()+1)
		return true
	}
	if got > 0 {
		x.arena.give(unit, got)
	}
	return false
}
