package policy

import "github.com/blockyard-ai/blockyard/blockmgr/registry"

// Evictor orders the slots of one tier that may be evicted now. It is given only
// blocks without children in the tier, and a parent when its last child has left,
// so that whatever the order children go before their parents. It is guarded by
// its pool's mutex.
type Evictor interface {
	// AddPart makes room for slots 0 to slots-1 of a part that is not there yet.
	// It comes before any of them is placed.
	AddExtent(part, slots uint32)
	// RemovePart forgets a part, none of whose slots is in the order. Its number
	// may be added again.
	RemoveExtent(part uint32)
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
