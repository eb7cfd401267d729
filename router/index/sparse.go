package index

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
	"github.com/blockyard-ai/blockyard/router/index/groups"
)

// sparseSums are the sums of an owner over the blocks of other KV groups than the primary one. Held
// pairs are in Index.sparse. Lost pairs found no room there.
type sparseSums struct {
	heldDigest, heldPairs uint64
	lostDigest, lostPairs uint64
}

func (s *sparseSums) pairs() uint64 { return s.heldPairs + s.lostPairs }

// storeSparse applies a stored event of another group than the primary one.
func (x *Index) storeSparse(o *owner, e *kvevent.RouterEvent) {
	for _, b := range e.Blocks {
		digest := kv.Digest(kv.InGroup(b.Hash, e.Group), e.Tier)
		added, ok := x.sparse.Store(groups.Block{Hash: b.Hash, Group: e.Group}, uint32(o.id), e.Tier, x.mayGrow)
		switch {
		case !ok:
			o.sparse.lostDigest += digest
			o.sparse.lostPairs++
			x.lostPairs++
			x.counts.Lost++
		case added:
			o.sparse.heldDigest += digest
			o.sparse.heldPairs++
			x.sparsePairs++
		default:
			x.counts.DuplicateStores++
		}
	}
}

// removeSparse applies a removed event of another group than the primary one. A block that the
// index does not have is taken for one of the owner's lost pairs, if it has any.
func (x *Index) removeSparse(o *owner, e *kvevent.RouterEvent) {
	for _, h := range e.Removed {
		digest := kv.Digest(kv.InGroup(h, e.Group), e.Tier)
		switch {
		case x.sparse.Remove(groups.Block{Hash: h, Group: e.Group}, uint32(o.id), e.Tier):
			o.sparse.heldDigest -= digest
			o.sparse.heldPairs--
			x.sparsePairs--
		case o.sparse.lostPairs > 0:
			o.sparse.lostDigest -= digest
			o.sparse.lostPairs--
			x.lostPairs--
		default:
			x.counts.UnknownRemovals++
		}
	}
}

// GroupDigest is Digest over the pairs of all KV groups but the primary one. A block counts as
// kv.InGroup names it.
func (x *Index) GroupDigest(who kv.Owner) (sum, pairs uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		s := &x.owners[id].sparse
		return s.heldDigest + s.lostDigest, s.pairs()
	}
	return 0, 0
}

// hybrid is the KV groups of a worker with more than one, and the tokens of a block of the index.
type hybrid struct {
	groups kvgroup.Groups
	page   uint32
}

// SetGroups sets the KV groups of a worker by their numbers in events, and the tokens of a block. It
// takes effect with the next SetMember of the worker, and ends when the worker is no member any more.
// Without groups the worker reaches every block that it or its pool holds. The groups must be valid
// for the block size.
func (x *Index) SetGroups(w kv.Worker, gs kvgroup.Groups, blockSize uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(gs) == 0 {
		delete(x.hybrids, w)
		return
	}
	x.hybrids[w] = &hybrid{slices.Clone(gs), blockSize}
}

// hybridMembers returns the groups of each member, nil without any.
func (x *Index) hybridMembers() (list []*hybrid) {
	for i, m := range x.members {
		if h := x.hybrids[m.Worker]; h != nil {
			if list == nil {
				list = make([]*hybrid, len(x.members))
			}
			list[i] = h
		}
	}
	return list
}

// limitHybrids shortens the hits of members with KV groups to the prefix that all groups can serve.
// dst.Hits are those of the primary group. A member left without a block leaves dst.Hits.
func (x *Index) limitHybrids(dst *Matches, v *view, locals []kv.LocalHash) {
	dst.sequence = dst.sequence[:0]
	dst.Hits = slices.DeleteFunc(dst.Hits, func(h Hit) bool { return v.hybrids[h.Member] != nil && h.Hits.Total() == 0 })
	kept := dst.Hits[:0]
	for _, h := range dst.Hits {
		if g := v.hybrids[h.Member]; g != nil {
			if len(dst.sequence) == 0 {
				dst.sequence = kv.AppendSequence(dst.sequence, locals)
			}
			blocks := x.fit(dst, g, v.sources[h.Member], h.Hits.Total())
			if blocks < h.Hits.Total() {
				h.Hits = dst.coverage.shorten(h.Hits, v.sources[h.Member], blocks)
			}
		}
		if h.Hits != (Hits{}) {
			kept = append(kept, h)
		}
	}
	dst.Hits = kept
}

// fit returns how many leading blocks of the prompt all groups of a member can serve. The member
// reaches the first primary blocks of the primary group, and what s holds of the others.
func (x *Index) fit(dst *Matches, g *hybrid, s source, primary uint32) uint32 {
	limit := uint64(primary) * uint64(g.page)
	if dst.MaxTokens > 0 {
		limit = min(limit, uint64(dst.MaxTokens))
	}
	tokens := g.groups.Fit(uint32(min(limit, 1<<31)), 0, g.page, func(group int, at uint32) bool {
		if group == 0 || int(at) >= len(dst.sequence) {
			return at < primary
		}
		return x.sparse.Holds(groups.Block{Hash: dst.sequence[at], Group: uint32(group)}, uint32(s.own), uint32(s.pool))
	})
	return tokens / g.page
}

// shorten returns the hits of a member up to a number of blocks, fewer than h has.
func (c *coverage) shorten(h Hits, s source, blocks uint32) Hits {
	if c.reading == Union { // a slow tier may have blocks before those of a fast one
		return c.union(s, blocks)
	}
	for t := range h {
		h[t] = min(h[t], blocks)
		blocks -= h[t]
	}
	return h
}

// dumpSparse visits an owner's blocks of other groups than the primary one as DumpOwner does, by
// tier, group and hash. It goes on with the ids of e.
func (x *Index) dumpSparse(who kv.Owner, e *kvevent.RouterEvent, visit func(e *kvevent.RouterEvent) bool) {
	for _, list := range x.sparseOf(func(o *owner) bool { return o.who == who }) {
		if e.ID++; !visit(list.event(e)) {
			return
		}
	}
}

// sparseList is blocks of one owner, tier and group.
type sparseList struct {
	who    kv.Owner
	tier   kv.Tier
	group  uint32
	blocks []kvevent.StoredBlock
}

// event fills e, whose ID stays, with the list.
func (l *sparseList) event(e *kvevent.RouterEvent) *kvevent.RouterEvent {
	*e = kvevent.RouterEvent{ID: e.ID, Owner: l.who, Tier: l.tier, Kind: kvevent.Stored, Group: l.group, Blocks: l.blocks}
	return e
}

// sparseOf returns a copy of the blocks of the owners for which of is true, at one moment, in lists
// of at most maxDumpBlocks, ordered by owner, tier, group and hash.
func (x *Index) sparseOf(of func(o *owner) bool) (lists []sparseList) {
	type held struct {
		groups.Block
		who  kv.Owner
		tier kv.Tier
	}
	var all []held
	x.mu.Lock()
	for b, holder := range x.sparse.All() {
		o := x.owners[holder.Owner]
		if o.retired || x.ids[o.who] != o.id || !of(o) {
			continue
		}
		for _, t := range kv.Tiers {
			if holder.Tiers.Has(t) {
				all = append(all, held{b, o.who, t})
			}
		}
	}
	x.mu.Unlock()
	slices.SortFunc(all, func(a, b held) int {
		return cmp.Or(a.who.Compare(b.who), cmp.Compare(a.tier, b.tier), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Hash, b.Hash))
	})
	for i, h := range all {
		last := len(lists) - 1
		if i == 0 || all[i-1].who != h.who || lists[last].tier != h.tier || lists[last].group != h.Group || len(lists[last].blocks) == maxDumpBlocks {
			lists = append(lists, sparseList{who: h.who, tier: h.tier, group: h.Group})
			last++
		}
		lists[last].blocks = append(lists[last].blocks, kvevent.StoredBlock{Hash: h.Hash})
	}
	return lists
}
