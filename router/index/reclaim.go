package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// sweepRuns is the number of runs of retired owners that each change sweeps.
const sweepRuns = 4

// Sweep frees what removed owners left. It looks at the given number of runs at
// most, and reports whether there is more.
func (x *Index) Sweep(runs int) (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.freeRetired()
	x.sweep(runs)
	x.freeRetired()
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
		if x.runs.Side(r).Live && x.clearEntries(o.id, r) > 0 {
			x.prune(r)
		}
	}
}

// prune frees a run without owners and children, and then possibly its parent.
func (x *Index) prune(r runs.ID) {
	for r != runs.Root {
		s := x.runs.Side(r)
		if s.Held > 0 || s.FirstChild != runs.None || r == x.protected {
			return
		}
		if s.StandIn {
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

// discard retires a run that is detached and not in the directory.
func (x *Index) discard(r runs.ID) {
	h := x.runs.Head(r)
	st := h.Storage()
	x.resident -= st.Blocks()
	h.Store.Store(0)
	h.Place.Store(0) // or a guess would find the run here in its next use
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
// Most of them are freed before their turn.
const maxShrinking = 512

// queueShrink queues a run that may have unused blocks at its end.
func (x *Index) queueShrink(r runs.ID) {
	s := x.runs.Side(r)
	if s.Queued {
		return
	}
	s.Queued = true
	x.shrinking = append(x.shrinking, r)
}

// shrinkSome checks the runs that have waited longest.
func (x *Index) shrinkSome() {
	if len(x.shrinking) < maxShrinking {
		return
	}
	half := len(x.shrinking) / 2
	for _, r := range x.shrinking[:half] {
		s := x.runs.Side(r)
		s.Queued = false
		if s.Live && !s.StandIn {
			x.shrink(r)
		}
	}
	x.shrinking = append(x.shrinking[:0], x.shrinking[half:]...)
}

// shrink cuts the unused blocks off the end of a run if that frees memory. An
// unused block has no owner and no child.
func (x *Index) shrink(r runs.ID) {
	h := x.runs.Head(r)
	st := h.Storage()
	used := 0
	for walk := x.runs.Slots(r); ; {
		slot := walk.Next()
		if slot == nil {
			break
		}
		used = max(used, entry(slot.Load()).hi())
	}
	for c := x.runs.Side(r).FirstChild; c != runs.None && runs.ClassFor(used) < st.Class(); c = x.runs.Side(c).NextSibling {
		used = max(used, runs.UnpackPlace(x.runs.Head(c).Place.Load()).Pos+1)
	}
	class := runs.ClassFor(used)
	if used == 0 || class >= st.Class() {
		return
	}
	x.move(r, class, used, st.Version()+1)
}

// move copies the first n blocks of a run into a piece of another class. The old
// piece stays as it is for its readers.
func (x *Index) move(r runs.ID, class, n, version int) bool {
	unit, ok := x.arena.Take(class, x.mayGrow)
	if ok {
		x.moveTo(r, unit, class, n, version)
	}
	return ok
}

// moveTo is move to a piece that was taken already.
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

// readers counts the readers, so that the writer knows when no reader can reach
// what was unlinked. A reader increments the counter of the current side and
// decrements the same counter at its end. Unlinked memory is free once both sides
// have been seen empty, and the writer has switched sides in between.
type readers struct {
	side   atomic.Uint32
	count  [readerShards]readerCount
	shards atomic.Uint32
}

const readerShards = 16

// readerCount fills two cache lines, so that readers on different cores do not
// share one.
type readerCount struct {
	n [2]atomic.Int64
	_ [112]byte
}

// shard returns a counter for a new reader.
func (r *readers) shard() uint32 { return r.shards.Add(1) % readerShards }

// enter registers a reader. The reader subtracts one from the result at its end.
func (r *readers) enter(shard uint32) *atomic.Int64 {
	c := &r.count[shard%readerShards].n[r.side.Load()&1]
	c.Add(1)
	return c
}

func (r *readers) empty(side uint32) bool {
	for i := range r.count {
		if r.count[i].n[side&1].Load() != 0 {
			return false
		}
	}
	return true
}

// retired is something unlinked that readers may still reach.
type retired struct {
	what retiredKind
	// class is the class of a piece.
	class uint8
	// id is the first unit of a piece, a run, or an owner.
	id uint32
}

type retiredKind uint8

const (
	retiredPiece retiredKind = iota
	retiredRun
	retiredOwner
)

// limbo keeps what was unlinked until no reader can reach it.
type limbo struct {
	young, waiting []retired
	// sideLeft is true once the writer has left the side that waiting waits for.
	sideLeft bool
	// units counts the units of the retired pieces, runs the retired runs.
	units, runs int
}

func (l *limbo) len() int { return len(l.young) + len(l.waiting) }

// retire puts something unlinked into limbo.
func (x *Index) retire(what retiredKind, id uint32, class int) {
	x.limbo.young = append(x.limbo.young, retired{what, uint8(class), id})
	x.limbo.units += class
	if what == retiredRun {
		x.limbo.runs++
	}
}

// freeRetired frees what no reader can reach.
func (x *Index) freeRetired() {
	l := &x.limbo
	for l.len() > 0 {
		if len(l.waiting) == 0 {
			l.waiting, l.young, l.sideLeft = l.young, l.waiting[:0], false
		}
		side := x.readers.side.Load()
		if !x.readers.empty(side + 1) {
			return
		}
		if !l.sideLeft {
			x.readers.side.Store(side + 1)
			l.sideLeft = true
			continue
		}
		for _, r := range l.waiting {
			x.free(r)
		}
		l.waiting = l.waiting[:0]
	}
}

func (x *Index) free(r retired) {
	switch r.what {
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
