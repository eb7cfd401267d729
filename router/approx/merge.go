package approx

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// MergeMax raises the device hits of each worker in dst to the hits in other. No block
// may count twice, so the difference is subtracted from the lower tiers, host first.
// Workers that dst.Members does not list are ignored. other is not changed.
func MergeMax(dst, other *index.Matches) {
	added := 0
	for i := range other.Hits {
		member, hits := memberOf(dst.Members, other, i)
		if member < 0 || hits == 0 {
			continue
		}
		if at, ok := findHit(dst.Hits, member); ok {
			dst.Hits[at].Hits.RaiseDevice(hits)
		} else {
			added++
		}
	}
	if added > 0 {
		mergeNew(dst, other, added)
	}
}

// mergeNew inserts the added workers that only other has hits for. It works from the
// end, so that each hit moves before its place is overwritten.
func mergeNew(dst, other *index.Matches, added int) {
	old := len(dst.Hits)
	dst.Hits = slices.Grow(dst.Hits, added)[:old+added]
	to, from := old+added-1, old-1
	for i := len(other.Hits) - 1; i >= 0 && to > from; i-- {
		member, hits := memberOf(dst.Members, other, i)
		if member < 0 || hits == 0 {
			continue
		}
		for from >= 0 && dst.Hits[from].Member > member {
			dst.Hits[to] = dst.Hits[from]
			to, from = to-1, from-1
		}
		if from >= 0 && dst.Hits[from].Member == member {
			continue
		}
		dst.Hits[to] = index.Hit{Member: member, Hits: index.Hits{kv.TierDevice: hits}}
		to--
	}
}

// memberOf returns the number in m of the worker of other's hit i, -1 for none, and
// the worker's device hits.
func memberOf(m *index.Members, other *index.Matches, i int) (member int32, hits uint32) {
	h := &other.Hits[i]
	if m == other.Members {
		return h.Member, h.Hits[kv.TierDevice]
	}
	w := other.Members.List[h.Member].Worker
	// Most workers have the same number in both lists.
	if at := int(h.Member); at < len(m.List) && m.List[at].Worker == w {
		return h.Member, h.Hits[kv.TierDevice]
	}
	at, ok := m.Find(w)
	if !ok {
		return -1, 0
	}
	return int32(at), h.Hits[kv.TierDevice]
}

// findHit returns the position in hits, ordered by member, of the hit of a member.
func findHit(hits []index.Hit, member int32) (int, bool) {
	return slices.BinarySearchFunc(hits, member, func(h index.Hit, m int32) int { return int(h.Member) - int(m) })
}
