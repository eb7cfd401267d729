package tier

import (
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// keeper is the retention pins of a set.
type keeper struct {
	until map[keptSlot]time.Time
	// count is how many retention pins each tier has.
	count [registry.NumLevels]int
}

// keptSlot names a slot that is held for a retention pin.
type keptSlot struct {
	level registry.Level
	ref   registry.Ref
}

// Kept is how many slots are held for retention pins.
func (set *Set) Kept() int { return len(set.kept.until) }

// Keep holds a resident slot until a moment, or the later one of two, and reports
// whether it does. At most half of a tier's slots are kept.
func (set *Set) Keep(t *Tier, ref registry.Ref, until time.Time) bool {
	s, name := t.Slot(ref), keptSlot{t.Level, ref}
	if !s.Resident() {
		return false
	}
	set.Touch(t, ref, s)
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

// unkeep ends the retention pin of a slot, if it has one. The caller settles the slot.
func (set *Set) unkeep(t *Tier, ref registry.Ref, s *Slot) {
	if !s.kept {
		return
	}
	s.kept = false
	s.Holds--
	delete(set.kept.until, keptSlot{t.Level, ref})
	set.kept.count[t.Level]--
}

// ExpireKept ends the retention pins whose time has come. next is when the first of
// the others ends, zero when there are none.
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
		set.Settle(t, name.ref, s)
	}
	return next
}
