package index

import (
	"math/bits"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// childTable finds the run that follows a block, by block and first local hash.
// It is open addressing over slots of {fingerprint, run}; an entry never moves
// within one table, so that readers need no lock. Growing makes a new table.
type childTable struct {
	slots []atomic.Uint64
	// shift brings a hash down to its home slot.
	shift uint
}

// graveSlot marks a slot whose entry was deleted. No child is the root run.
const graveSlot = uint64(rootRun)

// maxChildBytes is what a run takes in the table at most, after it has grown.
const maxChildBytes = 64

const childRunMask = 1<<runIDBits - 1

func newChildTable(logSlots uint) *childTable {
	return &childTable{slots: make([]atomic.Uint64, 1<<logSlots), shift: 64 - logSlots}
}

// childHash mixes the block and the first local hash. Its top bits choose the
// home slot, and the same bits are the fingerprint.
func childHash(p place, local kv.LocalHash) uint64 {
	hi, lo := bits.Mul64(uint64(local)^seed, (packPlace(p)+0x632be59bd9b4e019)*0xd6e8feb86659fd93|1)
	return (hi ^ lo) * 0x9fb21c651e98df25
}

// child is the run that follows block p with the given first local hash; noRun
// when there is none. Readers call it too.
func (x *Index) child(p place, local kv.LocalHash) runID {
	t := x.children.Load()
	hash := childHash(p, local)
	last := len(t.slots) - 1
	for i := int(hash >> t.shift); ; i = (i + 1) & last {
		v := t.slots[i].Load()
		if v == 0 {
			return noRun
		}
		if v^hash&^childRunMask >= 1<<runIDBits {
			continue
		}
		if r := runID(v & childRunMask); x.isChild(r, p, local) {
			return r
		}
	}
}

// isChild verifies a guess: run r follows block p with that first local hash.
func (x *Index) isChild(r runID, p place, local kv.LocalHash) bool {
	h := x.runs.head(r)
	if h.place.Load() != packPlace(p) {
		return false
	}
	s := h.storage()
	return s.blocks() > 0 && x.arena.locals(s)[0] == local
}

// childCounts are the writer's view of the table's filling.
type childCounts struct{ live, graves int }

// linkChild enters a run whose head is complete. From here on readers find it.
func (x *Index) linkChild(r runID, p place, local kv.LocalHash) {
	t := x.children.Load()
	if 2*(x.childCounts.live+x.childCounts.graves+1) > len(t.slots) {
		t = x.rebuildChildren(t)
	}
	if t.put(childHash(p, local)&^childRunMask | uint64(r)) {
		x.childCounts.graves--
	}
	x.childCounts.live++
}

// put enters v into the first slot that is free or a grave, and reports whether
// it was a grave.
func (t *childTable) put(v uint64) bool {
	last := len(t.slots) - 1
	for i := int(v >> t.shift); ; i = (i + 1) & last {
		if old := t.slots[i].Load(); old == 0 || old == graveSlot {
			t.slots[i].Store(v)
			return old == graveSlot
		}
	}
}

// rebuildChildren publishes a table without graves and with room to grow.
func (x *Index) rebuildChildren(t *childTable) *childTable {
	log := uint(bits.Len(uint(4*x.childCounts.live + 16)))
	fresh := newChildTable(min(log, 64-runIDBits))
	for i := range t.slots {
		if v := t.slots[i].Load(); v != 0 && v != graveSlot {
			fresh.put(v)
		}
	}
	x.childCounts.graves = 0
	x.children.Store(fresh)
	return fresh
}

// unlinkChild takes the entry of a run out.
func (x *Index) unlinkChild(r runID, p place, local kv.LocalHash) {
	t := x.children.Load()
	v := childHash(p, local)&^childRunMask | uint64(r)
	last := len(t.slots) - 1
	i := int(v >> t.shift)
	for t.slots[i].Load() != v {
		i = (i + 1) & last
	}
	x.childCounts.live--
	if t.slots[(i+1)&last].Load() != 0 {
		t.slots[i].Store(graveSlot)
		x.childCounts.graves++
		return
	}
	// Nobody searches past an empty slot, so graves before one can be empty too.
	t.slots[i].Store(0)
	for i = (i - 1) & last; t.slots[i].Load() == graveSlot; i = (i - 1) & last {
		t.slots[i].Store(0)
		x.childCounts.graves--
	}
}

// attach makes a run with blocks the child of block p.
func (x *Index) attach(r runID, p place) {
	h, s := x.runs.head(r), x.runs.side(r)
	h.place.Store(packPlace(p))
	parent := x.runs.side(p.run)
	s.prevSibling, s.nextSibling = noRun, parent.firstChild
	if parent.firstChild != noRun {
		x.runs.side(parent.firstChild).prevSibling = r
	}
	parent.firstChild = r
	x.linkChild(r, p, x.arena.locals(h.storage())[0])
	if ph := x.runs.head(p.run); p.pos == ph.storage().blocks()-1 && !x.isChildOf(runID(ph.next.Load()), p) {
		ph.next.Store(uint32(r))
	}
}

func (x *Index) isChildOf(r runID, p place) bool {
	return r != noRun && x.runs.side(r).live && x.runs.head(r).place.Load() == packPlace(p)
}

// detach takes a run from its parent. The run keeps its blocks.
func (x *Index) detach(r runID) place {
	h, s := x.runs.head(r), x.runs.side(r)
	p := unpackPlace(h.place.Load())
	x.unlinkChild(r, p, x.arena.locals(h.storage())[0])
	if s.prevSibling != noRun {
		x.runs.side(s.prevSibling).nextSibling = s.nextSibling
	} else {
		x.runs.side(p.run).firstChild = s.nextSibling
	}
	if s.nextSibling != noRun {
		x.runs.side(s.nextSibling).prevSibling = s.prevSibling
	}
	if ph := x.runs.head(p.run); ph.next.Load() == uint32(r) {
		ph.next.Store(uint32(noRun))
	}
	return p
}
