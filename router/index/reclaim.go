package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// sweepRuns is the number of runs of retired owners that each change sweeps.
const sweepRuns = 4

// Sweep frees the entries and runs that removed owners left. Sweep looks at the given
// number of runs at most, and reports whether there is more to free.
func (x *Index) Sweep(runs int) (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.freeRetired()
	x.sweep(runs)
	x.freeRetired()
	return len(x.sweeping) > 0 || x.limbo.len() > 0
}

// sweep removes the entries of retired owners from at most the given number of runs.
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
		if x.runs.WriterState(r).Live && x.clearEntries(o.id, r) > 0 {
			x.prune(r)
		}
	}
}

// prune frees a run without owners and children, and then possibly its parent.
func (x *Index) prune(r runs.ID) {
	for r != runs.Root {
		s := x.runs.WriterState(r)
		if s.EntryCount > 0 || s.FirstChild != runs.None || r == x.protected {
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
// Most of them are freed before their turn.
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

// shrinkSome checks the runs that have waited longest.
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

// shrink cuts the unused blocks off the end of a run if that frees memory. An
// unused block has no owner and no child.
func (x *Index) shrink(r runs.ID) {
	h := x.runs.Head(r)
	st := h.Storage()
	used := 0
	walk := x.runs.Slots(r)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		used = max(used, entry(slot.Load()).hi())
	}
	for c := x.runs.WriterState(r).FirstChild; c != runs.None && runs.ClassFor(used) < st.Class(); c = x.runs.WriterState(c).NextSibling {
		used = max(used, runs.UnpackPlace(x.runs.Head(c).Parent.Load()).Pos+1)
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

// moveTo does what move does, with a piece that the caller has taken.
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

// readers counts the readers, so that the writer knows when no reader can reach unlinked
// memory. Only the parity of epoch matters: a reader increments the counter of the current
// epoch's parity when it enters, and decrements that counter when it leaves. The writer
// frees unlinked memory once it has seen both parities without readers and has begun a
// new epoch in between.
type readers struct {
	epoch    atomic.Uint32
	counters [readerShards]readerCounter
	// lastShard spreads readers over counters.
	lastShard atomic.Uint32
}

const readerShards = 16

// readerCounter counts the readers inside, by the parity of the epoch in which they
// entered. It fills two cache lines, so that readers on different cores do not share one.
type readerCounter struct {
	inside [2]atomic.Int64
	_      [112]byte
}

// nextShard returns the number of a counter for a new reader.
func (r *readers) nextShard() uint32 { return r.lastShard.Add(1) % readerShards }

// enter registers a reader and returns the counter of readers that includes the new
// reader. The reader subtracts 1 from the counter when it leaves.
func (r *readers) enter(shard uint32) *atomic.Int64 {
	c := &r.counters[shard%readerShards].inside[r.epoch.Load()&1]
	c.Add(1)
	return c
}

// empty reports whether no reader is inside that entered in an epoch of this parity.
func (r *readers) empty(epoch uint32) bool {
	for i := range r.counters {
		if r.counters[i].inside[epoch&1].Load() != 0 {
			return false
		}
	}
	return true
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

// retire puts an unlinked piece, run or owner into limbo. class is 0 unless kind is
// retiredPiece.
func (x *Index) retire(kind retiredKind, id uint32, class int) {
	x.limbo.young = append(x.limbo.young, retired{kind, uint8(class), id})
	x.limbo.units += class
	if kind == retiredRun {
		x.limbo.runs++
	}
}

// freeRetired frees the retired pieces, runs and owners that no reader can reach.
func (x *Index) freeRetired() {
	l := &x.limbo
	for l.len() > 0 {
		if len(l.waiting) == 0 {
			l.waiting, l.young, l.epochEnded = l.young, l.waiting[:0], false
		}
		epoch := x.readers.epoch.Load()
		if !x.readers.empty(epoch - 1) {
			return
		}
		if !l.epochEnded {
			x.readers.epoch.Store(epoch + 1)
			l.epochEnded = true
			continue
		}
		for _, r := range l.waiting {
			x.free(r)
		}
		l.waiting = l.waiting[:0]
	}
}

// free makes retired memory available again. No reader may be able to reach r.
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
