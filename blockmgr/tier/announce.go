package tier

import (
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// announced says whether the sink knows the block of a slot.
type announced uint8

const (
	// known: the sink knows the block, or there is none.
	known announced = iota
	// notAnnounced: the block was found when the pool opened and is announced in its
	// turn.
	notAnnounced
	// waitsForParent: the block was stored since then, and its parent is not announced yet.
	waitsForParent
)

// announcement is what the sink has yet to be told.
type announcement struct {
	// blocks counts the slots whose blocks the sink does not know.
	blocks int
	// later are the slots of each tier with waitsForParent, parents before children. A
	// slot is in it at most once.
	later [registry.NumLevels][]registry.Ref
}

// forget drops the slots of an extent that goes.
func (a *announcement) forget(lv registry.Level, extent uint32) {
	a.later[lv] = slices.DeleteFunc(a.later[lv], func(r registry.Ref) bool { return r.Extent() == extent })
}

// Unannounced counts the resident blocks that the sink does not know.
func (set *Set) Unannounced() int { return set.announcing.blocks }

// announce reports the block in a slot, unless the sink knows it.
func (set *Set) announce(t *Tier, ref registry.Ref, s *Slot) {
	if s.announced == known {
		return
	}
	s.announced = known
	set.announcing.blocks--
	r := t.Record(ref)
	set.Sink.BlockStored(set.ns, t.Kind, BlockOf(&r))
}

// announceCopies reports the copies from which a block came into tier t.
func (set *Set) announceCopies(t *Tier, s *Slot) {
	for _, other := range set.Tiers() {
		if ref := set.Registry.At(s.Entry).Slots[other.Level]; other != t && ref != registry.NoRef {
			set.announce(other, ref, other.Slot(ref))
		}
	}
}

// stored reports a block that became resident. A block whose parent is not announced
// yet waits behind it.
func (set *Set) stored(t *Tier, ref registry.Ref, r *storage.Record) {
	if set.Sink == nil {
		return
	}
	s := t.Slot(ref)
	if set.announcing.blocks == 0 || !set.waits(set.Registry.At(s.Entry).Parent) {
		set.announceCopies(t, s)
		set.Sink.BlockStored(set.ns, t.Kind, BlockOf(r))
		return
	}
	s.announced = waitsForParent
	set.announcing.blocks++
	if !s.inLater {
		s.inLater = true
		set.announcing.later[t.Level] = append(set.announcing.later[t.Level], ref)
	}
}

// waits reports whether a block is resident and the sink knows none of its copies.
func (set *Set) waits(id registry.ID) bool {
	if id == registry.None {
		return false
	}
	waits := false
	for _, t := range set.Tiers() {
		ref := set.Registry.At(id).Slots[t.Level]
		if ref == registry.NoRef || !t.Slot(ref).Resident() {
			continue
		}
		if t.Slot(ref).announced == known {
			return false
		}
		waits = true
	}
	return waits
}

// announceLater marks the block of a slot as one that was recovered and is to be
// announced.
func (set *Set) announceLater(s *Slot) {
	if set.Sink != nil {
		s.announced = notAnnounced
		set.announcing.blocks++
	}
}

// Announce reports recovered blocks of a tier to the sink, except those that the sink
// knows already. NoRef is skipped, and so is a slot whose extent has gone.
func (set *Set) Announce(lv registry.Level, refs []registry.Ref) {
	t := set.Tier(lv)
	for _, ref := range refs {
		if ref == registry.NoRef || !t.Has(ref) {
			continue
		}
		// The slot may belong to a newer extent with the number of one that is gone. It is
		// announced only if it waits for that.
		if s := t.Slot(ref); s.announced == notAnnounced {
			set.announce(t, ref, s)
		}
	}
}

// AnnounceLater reports up to n blocks of each tier that wait for their parents, which
// have been reported. It reports whether there may be more.
func (set *Set) AnnounceLater(n int) (more bool) {
	for _, t := range set.Tiers() {
		later := set.announcing.later[t.Level]
		now := later[:min(n, len(later))]
		set.announcing.later[t.Level] = later[len(now):]
		for _, ref := range now {
			s := t.Slot(ref)
			s.inLater = false
			set.announce(t, ref, s)
		}
		more = more || len(later) > len(now)
	}
	return more
}

// AnnounceRemoved reports that some resident blocks of a tier are gone. Nothing else
// about them changes.
func (set *Set) AnnounceRemoved(t *Tier, refs []registry.Ref) {
	for _, ref := range refs {
		set.announce(t, ref, t.Slot(ref))
		r := t.Record(ref)
		set.Sink.BlockRemoved(set.ns, t.Kind, BlockOf(&r))
	}
}

// EachUnannounced calls do for those of n slots of an extent, from one on, whose
// recovered blocks are to be announced.
func (t *Tier) EachUnannounced(e *Extent, from, n int, do func(registry.Ref)) {
	for i := from; i < min(from+n, len(e.Slots)); i++ {
		if e.Slots[i].announced == notAnnounced {
			do(registry.MakeRef(e.Number, uint32(i)))
		}
	}
}

// maxSortedPosition is the last position that the sorts below tell apart: sequences
// are shorter.
const maxSortedPosition = 1 << 22

// Position is the position of a slot's block in its sequence, for sorting by
// counting: there may be millions of blocks, and most positions occur often.
func (t *Tier) Position(ref registry.Ref) int {
	e, i := t.At(ref)
	return int(min(e.Records.Position(i), maxSortedPosition))
}

// ByPosition are the resident slots of a tier in order of their blocks' position in
// their sequences.
func (t *Tier) ByPosition() []registry.Ref {
	var starts []int
	t.Each(func(ref registry.Ref, s *Slot) {
		if s.Resident() {
			n := t.Position(ref)
			for len(starts) <= n+1 {
				starts = append(starts, 0)
			}
			starts[n+1]++
		}
	})
	for i := 1; i < len(starts); i++ {
		starts[i] += starts[i-1]
	}
	if len(starts) == 0 {
		return nil
	}
	refs := make([]registry.Ref, starts[len(starts)-1])
	t.Each(func(ref registry.Ref, s *Slot) {
		if s.Resident() {
			n := t.Position(ref)
			refs[starts[n]] = ref
			starts[n]++
		}
	})
	return refs
}
