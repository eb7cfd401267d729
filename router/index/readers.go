package index

import "sync/atomic"

// readers counts who is reading, so that the writer knows when nobody can still
// reach what it has unlinked. A reader adds itself to the counter of the current
// side and takes itself off the same counter; it never waits. What was unlinked
// is free after both sides have been seen empty, the current one having been
// left in between.
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

// shard is a counter for a new reader.
func (r *readers) shard() uint32 { return r.shards.Add(1) % readerShards }

// enter registers a reader. The reader takes one off the result when it is done.
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

// retired is something that readers may still reach.
type retired struct {
	what retiredKind
	// class is that of a piece.
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
	// left is set when the side that waiting waits for has been left.
	left bool
	// units are those of the pieces in limbo, and runs the runs.
	units, runs int
}

func (l *limbo) len() int { return len(l.young) + len(l.waiting) }

// retire puts something into limbo. It must be unlinked already.
func (x *Index) retire(what retiredKind, id uint32, class int) {
	x.limbo.young = append(x.limbo.young, retired{what, uint8(class), id})
	x.limbo.units += class
	if what == retiredRun {
		x.limbo.runs++
	}
}

// settle frees what no reader can reach any more.
func (x *Index) settle() {
	l := &x.limbo
	for l.len() > 0 {
		if len(l.waiting) == 0 {
			l.waiting, l.young, l.left = l.young, l.waiting[:0], false
		}
		side := x.readers.side.Load()
		if !x.readers.empty(side + 1) {
			return
		}
		if !l.left {
			x.readers.side.Store(side + 1)
			l.left = true
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
		x.arena.give(r.id, int(r.class))
	case retiredRun:
		x.limbo.runs--
		x.runs.free = append(x.runs.free, runID(r.id))
	case retiredOwner:
		x.sweeping = append(x.sweeping, ownerID(r.id))
	}
}
