package tier

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// keeper holds the retention pins of a set.
type keeper struct {
	until map[slotName]time.Time
	// count counts the retention pins of each tier.
	count [registry.NumLevels]int
}

// slotName names a slot of any tier of a set.
type slotName struct {
	level registry.Level
	ref   registry.Ref
}

// Kept returns how many slots have a retention pin.
func (set *Set) Kept() int { return len(set.kept.until) }

// Keep gives a resident slot a retention pin that holds it until the given time. A second
// Keep extends the pin, never shortens it. Keep returns false for a slot that is not resident,
// and when half of the tier's slots are kept already.
func (set *Set) Keep(t *Tier, ref registry.Ref, until time.Time) bool {
	s, name := t.Slot(ref), slotName{t.Level, ref}
	if !s.Resident() {
		return false
	}
	set.Touch(s.Entry)
	if s.kept {
		if until.After(set.kept.until[name]) {
			set.kept.until[name] = until
		}
		return true
	}
	if set.kept.count[t.Level] >= t.Capacity/2 {
		set.Counters.KeepRefused++
		return false
	}
	s.kept = true
	set.kept.until[name] = until
	set.kept.count[t.Level]++
	set.Hold(t, ref)
	return true
}

// EachCopy calls do with the slot of a block in each tier that has one.
func (set *Set) EachCopy(key *kv.StoredKey, do func(*Tier, registry.Ref)) {
	id := set.Find(key)
	if id == registry.None {
		return
	}
	for _, t := range set.Tiers() {
		if ref := set.Registry.At(id).Slots[t.Level]; ref != registry.NoRef {
			do(t, ref)
		}
	}
}

// Unkeep ends the retention pins of a block, and returns false for a block without one.
func (set *Set) Unkeep(key *kv.StoredKey) (ended bool) {
	set.EachCopy(key, func(t *Tier, ref registry.Ref) {
		if s := t.Slot(ref); s.kept {
			set.unkeep(t, ref, s)
			set.UpdateEvictable(t, ref, s)
			ended = true
		}
	})
	return ended
}

// KeptCopy reports whether a block is resident in a tier, and whether it has a retention pin in one.
func (set *Set) KeptCopy(key *kv.StoredKey) (resident, kept bool) {
	set.EachCopy(key, func(t *Tier, ref registry.Ref) {
		s := t.Slot(ref)
		resident, kept = resident || s.Resident(), kept || s.kept
	})
	return resident, kept
}

// unkeep ends the retention pin of a slot, if it has one, and its hold. The caller then updates the
// eviction order, with Settle.
func (set *Set) unkeep(t *Tier, ref registry.Ref, s *Slot) {
	if !s.kept {
		return
	}
	s.kept = false
	s.Holds--
	delete(set.kept.until, slotName{t.Level, ref})
	set.kept.count[t.Level]--
}

// ExpireKept ends the retention pins whose time is up at now. next is the time at which the next
// retention pin ends, zero if none is left.
func (set *Set) ExpireKept(now time.Time) (next time.Time) {
	for name, until := range set.kept.until {
		if until.After(now) {
			if next.IsZero() || until.Before(next) {
				next = until
			}
			continue
		}
		t := set.Tier(name.level)
		s := t.Slot(name.ref)
		set.unkeep(t, name.ref, s)
		set.UpdateEvictable(t, name.ref, s)
	}
	return next
}
