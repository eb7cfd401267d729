package policy

import "github.com/blockyard-ai/blockyard/blockmgr/registry"

// Evictor orders the slots of one tier that may be evicted now. A tier places only blocks
// without children, and a parent when its last child has left, so that children are
// evicted before their parents in any order. The pool's lock guards an Evictor.
type Evictor interface {
	// AddExtent makes room for slots 0 to slots-1 of an extent that is not there yet.
	// It comes before any of them is placed.
	AddExtent(extent, slots uint32)
	// RemoveExtent forgets an extent, none of whose slots is in the order. Its number
	// may be added again.
	RemoveExtent(extent uint32)
	// SetLevel says how many ticks a level of priority is worth in every Place from now
	// on; 0 before. No priority is worth more than 2^62 ticks.
	SetLevel(ticks uint64)
	// Place enters ref into the order, or moves it to where priority and tick
	// belong. Ticks count the uses of the tier. A block goes as if it had been used
	// priority levels later than at tick.
	Place(ref registry.Ref, priority uint32, tick uint64)
	// Remove takes ref out, and does nothing when it is not in.
	Remove(ref registry.Ref)
	// Victim is the slot to evict first, which stays in the order; ok is false
	// when no slot is in it.
	Victim() (ref registry.Ref, ok bool)
	// Len is the number of slots in the order.
	Len() int
}

var _ Evictor = (*LeafLRU)(nil)
