package tier

import (
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// Check compares the counters, the eviction order and the registry with the slots, and
// the states with the capacity. The error joins all differences. It looks at every
// slot; tests call it after every step.
func (set *Set) Check() error {
	var bad []error
	for _, t := range set.Tiers() {
		bad = append(bad, set.checkTier(t)...)
	}
	return errors.Join(bad...)
}

// checkTier counts one tier's slots and returns where the counters, the eviction order, the registry
// or the records disagree.
func (set *Set) checkTier(t *Tier) (bad []error) {
	st := t.Stats()
	if sum := st.Free + st.Granted + st.Staging + st.Receiving + st.Quarantined + st.Active + st.Inactive; sum != st.Capacity {
		bad = append(bad, fmt.Errorf("%s: states add up to %d of %d: %+v", t.Kind, sum, st.Capacity, st))
	}
	var counts [storage.NumStates]int
	active, evictable, pinned, free := 0, 0, 0, 0
	t.Each(func(ref registry.Ref, s *Slot) {
		counts[s.State]++
		if s.Pins > 0 {
			pinned++
		}
		if s.Resident() && s.InUse() {
			active++
		}
		if s.inEvictionOrder {
			evictable++
		}
		if err := set.checkSlot(t, ref, s); err != nil {
			bad = append(bad, fmt.Errorf("%s slot %d in state %s: %w", t.Kind, ref, s.State, err))
		}
	})
	for _, e := range t.Extents {
		if e != nil {
			free += len(e.free)
		}
	}
	if counts != t.stateCounts || active != t.activeSlots || evictable != t.evictionOrder.Len() || pinned != t.Pinned || counts[storage.StateFree] != free {
		bad = append(bad, fmt.Errorf("%s: counted %v, %d active, %d evictable, %d pinned; kept %v, %d, %d, %d, %d free",
			t.Kind, counts, active, evictable, pinned, t.stateCounts, t.activeSlots, t.evictionOrder.Len(), t.Pinned, free))
	}
	return bad
}

// checkSlot returns an error if a slot disagrees with the eviction order, with its registry entry
// or with its record.
func (set *Set) checkSlot(t *Tier, ref registry.Ref, s *Slot) error {
	if s.inEvictionOrder && (s.State != storage.StateSealed || s.InUse() || set.Registry.At(s.Entry).Children[t.Level] > 0) {
		return errors.New("is in the eviction order and may not be evicted")
	}
	if s.entered != (s.Entry != registry.None) {
		return fmt.Errorf("the eviction order knows its block: %v", s.entered)
	}
	if s.Entry != registry.None && set.Registry.At(s.Entry).Slots[t.Level] != ref {
		return fmt.Errorf("its entry names slot %d", set.Registry.At(s.Entry).Slots[t.Level])
	}
	e, i := t.At(ref)
	r, err := e.Records.Get(i)
	// A quarantined slot that a previous session holds keeps the previous agent's record.
	previous := s.State == storage.StateQuarantined && s.Holds > 0
	if !previous && (err != nil || r.State != s.State || r.Generation != s.Generation) {
		return fmt.Errorf("generation %d, its record %s/%d: %v", s.Generation, r.State, r.Generation, err) //nolint:errorlint // may be nil
	}
	return nil
}
