package tier

import (
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// announced says whether the sink knows the block of a slot.
type announced uint8

const (
	// known: the sink knows the block, or the slot has none.
	known announced = iota
	// notAnnounced: the block was recovered. Announce reports it.
	notAnnounced
	// waitsForParent: the block was stored while its parent was unannounced.
	// AnnounceWaiting reports it.
	waitsForParent
)

// announcement is the list of blocks that the sink does not know yet.
type announcement struct {
	// blocks counts the slots whose blocks the sink does not know.
	blocks int
	// waiting has every slot with waitsForParent, parents before children. A slot that has
	// lost its block since stays in the list, so that its next block cannot take its turn.
	waiting []waitingSlot
}

// waitingSlot is a slot at the generation at which its block was stored.
type waitingSlot struct {
	slotName
	generation uint64
}

// minWaiting is the length below which the list of waiting slots is not compacted.
const minWaiting = 64

// forget removes the slots of an extent that leaves its tier from the waiting ones.
func (a *announcement) forget(lv registry.Level, extent uint32) {
	a.waiting = slices.DeleteFunc(a.waiting, func(w waitingSlot) bool { return w.level == lv && w.ref.Extent() == extent })
}

// wait puts a slot on the list of those whose blocks are reported to the Sink later, after their
// parents. It first compacts a long list of which half are slots that have lost their blocks.
func (set *Set) wait(t *Tier, ref registry.Ref, s *Slot) {
	a := &set.announcing
	s.announced = waitsForParent
	a.blocks++
	if len(a.waiting) >= max(minWaiting, 2*a.blocks) {
		a.waiting = slices.DeleteFunc(a.waiting, func(w waitingSlot) bool { return !set.stillWaits(w) })
	}
	a.waiting = append(a.waiting, waitingSlot{slotName{t.Level, ref}, s.Generation})
}

// stillWaits reports whether a waiting slot still has its block.
func (set *Set) stillWaits(w waitingSlot) bool {
	s := set.Tier(w.level).Slot(w.ref)
	return s.Generation == w.generation && s.announced == waitsForParent
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

// announceCopies reports the recovered copies of the slot's block in tiers other than t, unless
// the Sink knows them already.
func (set *Set) announceCopies(t *Tier, s *Slot) {
	for _, other := range set.Tiers() {
		if ref := set.Registry.At(s.Entry).Slots[other.Level]; other != t && ref != registry.NoRef {
			set.announce(other, ref, other.Slot(ref))
		}
	}
}

// stored reports a block that became resident in tier t to the Sink. r is the record of its slot.
// A block whose parent the Sink does not know yet waits for the parent.
func (set *Set) stored(t *Tier, ref registry.Ref, r *storage.Record) {
	if set.Sink == nil {
		return
	}
	s := t.Slot(ref)
	if set.announcing.blocks > 0 && set.unannounced(set.Registry.At(s.Entry).Parent) {
		set.wait(t, ref, s)
		return
	}
	set.announceCopies(t, s)
	set.Sink.BlockStored(set.ns, t.Kind, BlockOf(r))
}

// unannounced reports whether a block is resident and the sink knows none of its copies.
func (set *Set) unannounced(id registry.ID) bool {
	if id == registry.None {
		return false
	}
	resident := false
	for _, t := range set.Tiers() {
		ref := set.Registry.At(id).Slots[t.Level]
		if ref == registry.NoRef || !t.Slot(ref).Resident() {
			continue
		}
		if t.Slot(ref).announced == known {
			return false
		}
		resident = true
	}
	return resident
}

// markRecovered marks the recovered block of a slot, so that Announce reports it.
func (set *Set) markRecovered(s *Slot) {
	if set.Sink != nil {
		s.announced = notAnnounced
		set.announcing.blocks++
	}
}

// Announce reports recovered blocks of a tier to the sink, except those that the sink
// knows already. It skips NoRef and slots whose extent has left the tier.
func (set *Set) Announce(lv registry.Level, refs []registry.Ref) {
	t := set.Tier(lv)
	for _, ref := range refs {
		if ref == registry.NoRef || !t.Has(ref) {
			continue
		}
		// A newer extent may have the number of one that has left. Its slots are announced
		// only if they were recovered too.
		if s := t.Slot(ref); s.announced == notAnnounced {
			set.announce(t, ref, s)
		}
	}
}

// AnnounceWaiting reports up to n blocks that were stored before their recovered parents were
// announced. Announce must have reported all recovered blocks. more means that other blocks may
// be waiting.
func (set *Set) AnnounceWaiting(n int) (more bool) {
	a := &set.announcing
	now := a.waiting[:min(n, len(a.waiting))]
	a.waiting = a.waiting[len(now):]
	for _, w := range now {
		if set.stillWaits(w) {
			t := set.Tier(w.level)
			set.announce(t, w.ref, t.Slot(w.ref))
		}
	}
	return len(a.waiting) > 0
}

// AnnounceRemoved reports to the sink that resident blocks of a tier are gone. The blocks
// stay in their slots.
func (set *Set) AnnounceRemoved(t *Tier, refs []registry.Ref) {
	for _, ref := range refs {
		set.announce(t, ref, t.Slot(ref))
		r := t.Record(ref)
		set.Sink.BlockRemoved(set.ns, t.Kind, BlockOf(&r))
	}
}

// EachUnannounced calls do for the slots from … from+n-1 of an extent whose recovered blocks
// Announce has not reported.
func (t *Tier) EachUnannounced(e *Extent, from, n int, do func(registry.Ref)) {
	for i := from; i < min(from+n, len(e.Slots)); i++ {
		if e.Slots[i].announced == notAnnounced {
			do(registry.MakeRef(e.Number, uint32(i)))
		}
	}
}

// maxSortedPosition is the last position that the sorts below tell apart. Longer sequences
// do not occur.
const maxSortedPosition = 1 << 22

// Position returns the position of a slot's block in its sequence, at most
// maxSortedPosition. Counting sorts use it: millions of blocks share few positions.
func (t *Tier) Position(ref registry.Ref) int {
	e, i := t.At(ref)
	return int(min(e.Records.Position(i), maxSortedPosition))
}

// ByPosition returns the resident slots of a tier by their blocks' positions in their sequences,
// ascending: parents before children. It is a counting sort.
func (t *Tier) ByPosition() []registry.Ref {
	var starts []int // starts[n] is where the next block at position n goes
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
