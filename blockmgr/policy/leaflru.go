package policy

import (
	"fmt"
	"math/bits"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// LeafLRU is the Evictor that names the lowest rank first, then the lowest reference. The rank
// of a slot is its tick plus a level for each point of its priority. Priority ages, because the
// ticks of other slots rise. LeafLRU is a heap with the position of each slot, so that any slot
// can be moved or removed.
//
// The heap has four children to a parent, which halves its depth against a
// binary one, and its root is element 3, so that the four children of a parent
// are elements 4k to 4k+3: they share a cache line and a chunk.
type LeafLRU struct {
	// extents by their number; a missing extent has no positions.
	extents []lruExtent
	heap    chunked[leaf]
	// end is the element after the heap's last one.
	end uint32
	// level is the number of ticks that a level of priority adds to a rank.
	level uint64
}

// lruExtent has the heap positions of the slots of one extent.
type lruExtent struct {
	// position by slot; 0 for a slot that is not in the heap.
	position []uint32
	// placed is the number of slots in the heap.
	placed uint32
}

// leaf is one slot in the heap.
type leaf struct {
	rank uint64
	ref  registry.Ref
}

// heapRoot is the first element of the heap; LeafLRU says why.
const heapRoot = 3

// NewLeafLRU returns an order without extents.
func NewLeafLRU() *LeafLRU { return &LeafLRU{end: heapRoot} }

// AddExtent implements Evictor: it makes room for the slots of a new extent, none of which is in the
// order yet.
func (l *LeafLRU) AddExtent(extent, slots uint32) {
	for uint32(len(l.extents)) <= extent {
		l.extents = append(l.extents, lruExtent{})
	}
	p := &l.extents[extent]
	if p.position != nil {
		panic(fmt.Sprintf("BUG: policy: extent %d is added twice", extent))
	}
	p.position = make([]uint32, slots)
}

// RemoveExtent implements Evictor: it forgets an extent, none of whose slots is in the order. Memory
// that the remaining slots cannot need is freed.
func (l *LeafLRU) RemoveExtent(extent uint32) {
	if p := &l.extents[extent]; p.placed != 0 {
		panic(fmt.Sprintf("BUG: policy: extent %d is removed with %d slots in the order", extent, p.placed))
	}
	l.extents[extent] = lruExtent{}
	left := uint32(heapRoot)
	for i := range l.extents {
		left += uint32(len(l.extents[i].position))
	}
	l.heap.trim(left)
}

// maxBonus bounds the ticks that a priority adds to a rank, so that a rank stays below 2^64.
const maxBonus = 1 << 62

// SetLevel implements Evictor.
func (l *LeafLRU) SetLevel(ticks uint64) { l.level = ticks }

// rank returns the rank of a slot with a priority that was last used at tick.
func (l *LeafLRU) rank(priority uint32, tick uint64) uint64 {
	over, bonus := bits.Mul64(uint64(priority), l.level)
	if over != 0 || bonus > maxBonus {
		bonus = maxBonus
	}
	return tick + bonus
}

// Place implements Evictor: the slot may be evicted, in an order that follows from its priority and
// from tick, the time of its last use. A slot that is in the heap moves to its new rank. Place
// panics when no AddExtent has added the slot.
func (l *LeafLRU) Place(ref registry.Ref, priority uint32, tick uint64) {
	if !l.knows(ref) {
		panic(fmt.Sprintf("BUG: policy: slot %d of extent %d is placed, which was not added", ref.Slot(), ref.Extent()))
	}
	l.place(leaf{rank: l.rank(priority, tick), ref: ref})
}

// place puts a leaf into the heap, or moves it to its rank.
func (l *LeafLRU) place(n leaf) {
	ref := n.ref
	p := &l.extents[ref.Extent()]
	i := p.position[ref.Slot()]
	if i == 0 { // not in the heap yet
		p.placed++
		i = l.end
		l.heap.growTo(i)
		l.end++
	}
	l.placeAt(i, n)
}

// Remove implements Evictor: the slot may not be evicted any more. It ignores a slot that is not in
// the heap.
func (l *LeafLRU) Remove(ref registry.Ref) {
	if !l.knows(ref) {
		return
	}
	p := &l.extents[ref.Extent()]
	i := p.position[ref.Slot()]
	if i == 0 {
		return
	}
	p.position[ref.Slot()] = 0
	p.placed--
	l.end--
	if i < l.end { // the last leaf fills the gap
		l.placeAt(i, *l.heap.at(l.end))
	}
}

// Victim implements Evictor.
func (l *LeafLRU) Victim() (ref registry.Ref, ok bool) {
	if l.end == heapRoot {
		return registry.NoRef, false
	}
	return l.heap.at(heapRoot).ref, true
}

// first returns the leaf to evict first; ok is false when there is none.
func (l *LeafLRU) first() (first leaf, ok bool) {
	if l.end == heapRoot {
		return leaf{ref: registry.NoRef}, false
	}
	return *l.heap.at(heapRoot), true
}

// leafOf returns the leaf of a slot; ok is false for a slot that is not in the heap.
func (l *LeafLRU) leafOf(ref registry.Ref) (of leaf, ok bool) {
	i := l.extents[ref.Extent()].position[ref.Slot()]
	if i == 0 {
		return leaf{}, false
	}
	return *l.heap.at(i), true
}

// Enter implements Evictor; the order does not depend on it.
func (l *LeafLRU) Enter(registry.Ref, registry.Ref, uint64) {}

// Leave implements Evictor; the order does not depend on it.
func (l *LeafLRU) Leave(registry.Ref) {}

// Hit implements Evictor; the order follows from the ticks of Place.
func (l *LeafLRU) Hit(registry.Ref) {}

// Len implements Evictor.
func (l *LeafLRU) Len() int { return int(l.end - heapRoot) }

// knows reports whether ref is a slot of an extent that was added.
func (l *LeafLRU) knows(ref registry.Ref) bool {
	return ref.Extent() < uint32(len(l.extents)) && ref.Slot() < uint32(len(l.extents[ref.Extent()].position))
}

// placeAt puts n into the heap, at element i or above or below it, where the order wants it.
// Element i is free, and the other elements are in order.
func (l *LeafLRU) placeAt(i uint32, n leaf) {
	if i > heapRoot && n.before(l.heap.at(parentOf(i))) {
		l.up(i, n)
	} else {
		l.down(i, n)
	}
}

// up restores the heap's order above the free element i: it puts n there or at one of its ancestors.
// The ancestors that n comes before move down.
func (l *LeafLRU) up(i uint32, n leaf) {
	for i > heapRoot {
		above := l.heap.at(parentOf(i))
		if !n.before(above) {
			break
		}
		l.put(i, *above)
		i = parentOf(i)
	}
	l.put(i, n)
}

// down restores the heap's order below the free element i: it puts n there or at one of its
// descendants. The descendants that come before n move up.
func (l *LeafLRU) down(i uint32, n leaf) {
	for last := l.end - 1; i <= parentOf(last); {
		child := childOf(i) // then the child that comes first
		least := l.heap.at(child)
		for c := child + 1; c <= min(childOf(i)+3, last); c++ {
			if other := l.heap.at(c); other.before(least) {
				child, least = c, other
			}
		}
		if !least.before(&n) {
			break
		}
		l.put(i, *least)
		i = child
	}
	l.put(i, n)
}

// put makes n element i and records its position.
func (l *LeafLRU) put(i uint32, n leaf) {
	*l.heap.at(i) = n
	l.extents[n.ref.Extent()].position[n.ref.Slot()] = i
}

// before reports whether n is evicted before m.
func (n *leaf) before(m *leaf) bool {
	if n.rank != m.rank {
		return n.rank < m.rank
	}
	return n.ref < m.ref
}

// parentOf returns the element above i; for the root it is one before the root.
func parentOf(i uint32) uint32 { return i/4 + 2 }

// childOf returns the first of the four elements below i.
func childOf(i uint32) uint32 { return 4*i - 8 }
