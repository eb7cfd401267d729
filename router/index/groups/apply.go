package groups

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Sums are the sums of kv.Digest over the (block, tier) pairs of an owner, and their numbers. A block
// counts as kv.InGroup names it. Held pairs are in the table. Lost pairs found no room there.
type Sums struct {
	HeldDigest, HeldPairs uint64
	LostDigest, LostPairs uint64
}

// Pairs returns the number of held and lost pairs.
func (s *Sums) Pairs() uint64 { return s.HeldPairs + s.LostPairs }

// Apply applies a stored or removed event to the table and to the sums of the event's owner, which
// has a number in the table. It returns how many blocks were stored that the owner had, and how many
// were removed that it had not. A removed block that the table lacks counts as one of the owner's
// lost ones, if it has any.
func (t *Table) Apply(e *kvevent.RouterEvent, owner uint32, s *Sums, mayGrow func(bytes int64) bool) (duplicate, unknown int) {
	for _, b := range e.Blocks {
		digest := kv.Digest(kv.InGroup(b.Hash, e.Group), e.Tier)
		switch added, ok := t.Store(Block{b.Hash, e.Group}, owner, e.Tier, mayGrow); {
		case !ok:
			s.LostDigest += digest
			s.LostPairs++
		case added:
			s.HeldDigest += digest
			s.HeldPairs++
		default:
			duplicate++
		}
	}
	for _, h := range e.Removed {
		digest := kv.Digest(kv.InGroup(h, e.Group), e.Tier)
		switch {
		case t.Remove(Block{h, e.Group}, owner, e.Tier):
			s.HeldDigest -= digest
			s.HeldPairs--
		case s.LostPairs > 0:
			s.LostDigest -= digest
			s.LostPairs--
		default:
			unknown++
		}
	}
	return duplicate, unknown
}

// Events returns the table's blocks as stored events without ids, ordered by owner, tier, group and
// hash. An event has at most maxBlocks blocks. name returns the name of an owner, and false for an
// owner to leave out. The caller owns the events.
func (t *Table) Events(maxBlocks int, name func(owner uint32) (kv.Owner, bool)) (events []kvevent.RouterEvent) {
	type held struct {
		Block
		who  kv.Owner
		tier kv.Tier
	}
	var all []held
	for b, holder := range t.All() {
		who, ok := name(holder.Owner)
		if !ok {
			continue
		}
		for _, tier := range kv.Tiers {
			if holder.Tiers.Has(tier) {
				all = append(all, held{b, who, tier})
			}
		}
	}
	slices.SortFunc(all, func(a, b held) int {
		return cmp.Or(a.who.Compare(b.who), cmp.Compare(a.tier, b.tier), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Hash, b.Hash))
	})
	for i, h := range all {
		last := len(events) - 1
		if i == 0 || events[last].Owner != h.who || events[last].Tier != h.tier || events[last].Group != h.Group || len(events[last].Blocks) == maxBlocks {
			events = append(events, kvevent.RouterEvent{Owner: h.who, Tier: h.tier, Kind: kvevent.Stored, Group: h.Group})
			last++
		}
		events[last].Blocks = append(events[last].Blocks, kvevent.StoredBlock{Hash: h.Hash})
	}
	return events
}
