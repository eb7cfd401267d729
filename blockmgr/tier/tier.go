package tier

import (
	"fmt"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/tenant"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Tier holds the slots of one pool in one tier.
type Tier struct {
	Level registry.Level
	Kind  kv.Tier
	// Namespace is the namespace's index in the tier's slot table.
	Namespace uint32
	// Extents has the extent of each number in a registry.Ref; nil where one was removed.
	// There are at most registry.MaxExtents.
	Extents []*Extent
	// Live counts the extents, Capacity their slots.
	Live, Capacity int
	// MaxSlots bounds Capacity; 0 for no bound.
	MaxSlots uint64
	// Pinned counts the slots that sessions have pinned.
	Pinned int

	// usage counts the bytes of the slots; see New.
	usage *Usage

	// erasing counts the slots that wait to be overwritten; see beginErase.
	erasing int

	// owned has the slots of each tenant.
	owned map[tenant.Index]*owned

	byID map[uint32]*Extent
	// freeFrom is a lower bound of the numbers of extents with a free slot.
	freeFrom int
	// evictionOrder has the slots that may be evicted: sealed blocks without children and uses.
	evictionOrder policy.Evictor
	rule          policy.Rule
	stateCounts   [storage.NumStates]int
	// activeSlots counts the slots with a resident block that are pinned or held.
	activeSlots int
	// resetEpoch changes with each reset; see Stale.
	resetEpoch bool
}

// New makes a tier of one pool, without extents. ns is the namespace's index in the tier's slot
// table. maxSlots bounds the capacity; 0 for no bound. rule says what is evicted first. usage counts the
// bytes of the tier's slots, and perhaps those of other tiers.
func New(lv registry.Level, ns uint32, maxSlots uint64, rule policy.Rule, usage *Usage) *Tier {
	kind := kv.TierHost
	if lv == registry.Disk {
		kind = kv.TierDisk
	}
	return &Tier{Level: lv, Kind: kind, Namespace: ns, byID: map[uint32]*Extent{}, owned: map[tenant.Index]*owned{}, evictionOrder: rule.New(), rule: rule, MaxSlots: maxSlots, usage: usage}
}

// Add adds a new extent, whose slots are all free, at the generations of their records. Set.Recover
// adds an extent of an earlier agent.
func (t *Tier) Add(e *Extent) {
	t.install(e)
	n := e.Geometry().Slots
	e.free = make([]uint32, 0, n)
	for i := n; i > 0; i-- { // a stack: slot 0 is taken first
		e.free = append(e.free, i-1)
	}
	for i := range e.Slots {
		if r, err := e.Records.Get(uint32(i)); err == nil {
			e.Slots[i].Generation = r.Generation
		}
	}
	t.stateCounts[storage.StateFree] += int(n)
	t.freeFrom = min(t.freeFrom, int(e.Number))
}

// install adds an extent, under the lowest number that is free. Its slots have no block yet. The
// caller counts the state of each slot in t.stateCounts.
func (t *Tier) install(e *Extent) {
	e.Number = uint32(len(t.Extents))
	for i, old := range t.Extents {
		if old == nil {
			e.Number = uint32(i)
			break
		}
	}
	if e.Number == uint32(len(t.Extents)) {
		t.Extents = append(t.Extents, nil)
	}
	t.Extents[e.Number] = e
	n := e.Geometry().Slots
	e.Slots = make([]Slot, n)
	for i := range e.Slots {
		e.Slots[i].Generation, e.Slots[i].Entry = 1, registry.None
	}
	t.byID[e.ID] = e
	t.Live++
	t.Capacity += int(n)
	t.usage.add(e)
	t.evictionOrder.AddExtent(e.Number, n)
}

// remove removes an extent. The caller has dropped the blocks of its slots; a slot with a block is
// a bug.
func (t *Tier) remove(e *Extent) {
	for i := range e.Slots {
		s := &e.Slots[i]
		if s.Entry != registry.None || s.inEvictionOrder {
			panic(fmt.Sprintf("BUG: %s slot %d of a removed extent has a block", t.Kind, i))
		}
		t.stateCounts[s.State]--
	}
	t.evictionOrder.RemoveExtent(e.Number)
	t.Extents[e.Number] = nil
	t.Live--
	t.Capacity -= len(e.Slots)
	t.usage.remove(e)
	delete(t.byID, e.ID)
}

// Leave takes what the tiers of a pool that has ended use out of the use of its model and its tenants.
func (set *Set) Leave() {
	for _, t := range set.Tiers() {
		for _, e := range t.Extents {
			if e != nil {
				t.usage.remove(e)
			}
		}
		set.leaveTenants(t)
	}
}

// Usage counts the bytes of the slots of one or more tiers. It is safe for concurrent use.
type Usage struct{ bytes atomic.Uint64 }

// Bytes returns the count.
func (u *Usage) Bytes() uint64 { return u.bytes.Load() }

func (u *Usage) add(e *Extent)    { u.bytes.Add(slotBytes(e)) }
func (u *Usage) remove(e *Extent) { u.bytes.Add(-slotBytes(e)) }

func slotBytes(e *Extent) uint64 { return uint64(len(e.Slots)) * e.Geometry().SlotBytes }

// Slot returns the state of slot ref.
func (t *Tier) Slot(ref registry.Ref) *Slot { return &t.Extents[ref.Extent()].Slots[ref.Slot()] }

// At returns the extent of a slot and the slot's index in it.
func (t *Tier) At(ref registry.Ref) (*Extent, uint32) { return t.Extents[ref.Extent()], ref.Slot() }

// Has reports whether the tier still has the extent of slot ref.
func (t *Tier) Has(ref registry.Ref) bool {
	return int(ref.Extent()) < len(t.Extents) && t.Extents[ref.Extent()] != nil && ref.Slot() < uint32(len(t.Extents[ref.Extent()].Slots))
}

// Each calls do for every slot of the tier, in any state.
func (t *Tier) Each(do func(registry.Ref, *Slot)) {
	for _, e := range t.Extents {
		if e == nil {
			continue
		}
		for i := range e.Slots {
			do(registry.MakeRef(e.Number, uint32(i)), &e.Slots[i])
		}
	}
}

// Name returns the name of a slot for callers of the pool.
func (t *Tier) Name(ref registry.Ref) Name {
	e, i := t.At(ref)
	return Name{Extent: e.ID, Index: i, Generation: e.Slots[i].Generation}
}

// Lookup finds the slot that a caller named. ok is false when no slot has that
// extent, index and generation.
func (t *Tier) Lookup(n Name) (ref registry.Ref, ok bool) {
	e := t.byID[n.Extent]
	if e == nil || n.Index >= uint32(len(e.Slots)) {
		return registry.NoRef, false
	}
	return registry.MakeRef(e.Number, n.Index), e.Slots[n.Index].Generation == n.Generation
}

// Record returns the slot's record. Only the set writes records in memory: Record panics on a
// damaged one.
func (t *Tier) Record(ref registry.Ref) storage.Record {
	e, i := t.At(ref)
	r, err := e.Records.Get(i)
	if err != nil {
		panic(fmt.Sprintf("BUG: %s slot %d: %v", t.Kind, ref, err))
	}
	return r
}

// PutRecord stores r as the slot's record. The namespace, generation, state, priority, session
// and recency come from the slot.
func (t *Tier) PutRecord(ref registry.Ref, r storage.Record) {
	e, i := t.At(ref)
	s := &e.Slots[i]
	r.Namespace, r.Generation, r.State, r.Priority = t.Namespace, s.Generation, s.State, s.Priority
	r.Session, r.Recency = uint64(s.Session), uint32(s.Tick>>recencyShift)
	e.Records.Put(i, &r)
}

// SetState changes the slot's state and the counters. The caller puts the record.
func (t *Tier) SetState(s *Slot, to storage.State) {
	t.stateCounts[s.State]--
	s.State = to
	t.stateCounts[to]++
}

// SetTurnover sets how much a level of priority counts in the eviction order: as much as the
// age of a block after slots other blocks have come into host memory.
func (t *Tier) SetTurnover(slots int) { t.evictionOrder.SetLevel(blockTicks * uint64(slots)) }

// updateEvictable updates what the tier derives from a slot: the count of active slots and the eviction
// order. Each change of the slot's state, pins, holds, tick, priority or children calls it. leaf
// says that the block has no child in the tier; only such a block may be evicted.
func (t *Tier) updateEvictable(ref registry.Ref, s *Slot, leaf bool) {
	active := s.Resident() && s.InUse()
	if active != s.countedActive {
		s.countedActive = active
		if active {
			t.activeSlots++
		} else {
			t.activeSlots--
		}
	}
	switch {
	case s.State == storage.StateSealed && !active && leaf:
		t.evictionOrder.Place(ref, s.Priority, s.Tick)
		s.inEvictionOrder = true
		if s.tenant != 0 {
			t.placeOwned(ref, s)
		}
	case s.inEvictionOrder:
		t.evictionOrder.Remove(ref)
		s.inEvictionOrder = false
	}
}

// Free returns the number of free slots.
func (t *Tier) Free() int { return t.stateCounts[storage.StateFree] }

// popFree takes a free slot of the first extent that has one, so that later extents become
// empty. It returns NoRef when no slot is free.
func (t *Tier) popFree() registry.Ref {
	for ; t.freeFrom < len(t.Extents); t.freeFrom++ {
		e := t.Extents[t.freeFrom]
		if e == nil || len(e.free) == 0 {
			continue
		}
		last := len(e.free) - 1
		i := e.free[last]
		e.free = e.free[:last]
		return registry.MakeRef(e.Number, i)
	}
	return registry.NoRef
}

// pushFree makes a slot available to popFree.
func (t *Tier) pushFree(ref registry.Ref) {
	e, i := t.At(ref)
	e.free = append(e.free, i)
	t.freeFrom = min(t.freeFrom, int(e.Number))
}

// useLast moves the slot that was freed last to the bottom of its extent's stack of free slots, so
// that it is taken after all others.
func (t *Tier) useLast(ref registry.Ref) {
	e, i := t.At(ref)
	if n := len(e.free); n > 0 && e.free[n-1] == i {
		copy(e.free[1:], e.free[:n-1])
		e.free[0] = i
	}
}

// AtBound reports whether the tier has the most slots or extents that a namespace may have.
func (t *Tier) AtBound() bool {
	return t.MaxSlots != 0 && uint64(t.Capacity) >= t.MaxSlots || t.Live >= registry.MaxExtents
}

// Fits reports whether the tier may have another extent of n slots.
func (t *Tier) Fits(n uint32) bool {
	return t.Live < registry.MaxExtents && (t.MaxSlots == 0 || uint64(t.Capacity)+uint64(n) <= t.MaxSlots)
}

// Room returns how many more slots the namespace may have; 0 for no bound.
func (t *Tier) Room() uint64 {
	if t.MaxSlots == 0 {
		return 0
	}
	return t.MaxSlots - min(uint64(t.Capacity), t.MaxSlots)
}

// Stats are the gauges of one tier of a pool, in slots unless named
// otherwise. Free + Granted + Staging + Receiving + Quarantined + Active +
// Inactive = Capacity, always.
type Stats struct {
	Capacity    int `json:"capacity" metric:"-"`
	Free        int `json:"free"`
	Granted     int `json:"granted"`
	Staging     int `json:"staging"`
	Receiving   int `json:"receiving"`
	Quarantined int `json:"quarantined"`
	// Active slots hold a block that is pinned, being sealed or being copied.
	Active int `json:"active"`
	// Inactive slots hold a block that is neither pinned nor held.
	Inactive int `json:"inactive"`
	Extents  int `json:"extents" metric:"-"`
	// Bytes is the size of the extents' files.
	Bytes uint64 `json:"bytes" metric:"-"`
}

// Stats returns the tier's gauges. A pool without the tier has none.
func (t *Tier) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	st := Stats{
		Capacity:    t.Capacity,
		Free:        t.stateCounts[storage.StateFree],
		Granted:     t.stateCounts[storage.StateGranted],
		Staging:     t.stateCounts[storage.StateStaging],
		Receiving:   t.stateCounts[storage.StateReceiving],
		Quarantined: t.stateCounts[storage.StateQuarantined],
		Active:      t.activeSlots,
		Extents:     t.Live,
	}
	st.Inactive = t.stateCounts[storage.StateSealed] + t.stateCounts[storage.StateFilled] + t.stateCounts[storage.StateEvicting] - t.activeSlots
	for _, e := range t.Extents {
		if e != nil {
			st.Bytes += e.Geometry().FileBytes()
		}
	}
	return st
}

// InUse counts the slots that keep a reset from beginning: active, granted or being filled.
func (t *Tier) InUse() int {
	return t.activeSlots + t.stateCounts[storage.StateGranted] + t.stateCounts[storage.StateStaging] + t.stateCounts[storage.StateReceiving]
}
