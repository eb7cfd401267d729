package index

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Stats are the index's counters and gauges.
type Stats struct {
	// Memberships is the number of (owner, block) pairs, Blocks that of distinct
	// blocks, Owners that of workers and pools, and Workers that of known
	// workers.
	Memberships, Blocks, Owners, Workers int
	// DuplicateStores counts stores of what was there already, UnknownRemovals
	// removals of what was not there, and Refused blocks and owners that did not
	// fit.
	DuplicateStores, UnknownRemovals, Refused uint64
}

// Stats is a snapshot of the counters.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := x.stats
	s.Memberships, s.Blocks = x.table.live, len(x.table.heads)
	s.Owners, s.Workers = len(x.ids), len(x.members)
	return s
}

// Digest is the sum of kv.Digest over everything that owner holds, and the
// number of (block, tier) pairs in that sum. Both are 0 for an unknown owner.
func (x *Index) Digest(o kv.Owner) (sum, pairs uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id := x.ids[o]
	return x.owners[id].digest, x.owners[id].pairs
}

// Dump calls visit for every block of every owner, ordered by owner (workers
// before pools) and hash. What it shows of one owner was true at one moment;
// two owners may be seen at different moments. visit runs without a lock and
// may use the index.
func (x *Index) Dump(visit func(owner kv.Owner, h kv.SequenceHash, tiers kv.TierMask)) {
	type block struct {
		hash  kv.SequenceHash
		tiers kv.TierMask
	}
	var blocks []block
	for _, o := range x.ownerList() {
		blocks = blocks[:0]
		x.mu.RLock()
		for r := x.owners[x.ids[o]].first; r != noCell; {
			c := x.table.at(r)
			blocks = append(blocks, block{c.hash, c.tiers()})
			r = c.nextOwned
		}
		x.mu.RUnlock()
		slices.SortFunc(blocks, func(a, b block) int { return cmp.Compare(a.hash, b.hash) })
		for _, b := range blocks {
			visit(o, b.hash, b.tiers)
		}
	}
}

func (x *Index) ownerList() []kv.Owner {
	x.mu.RLock()
	defer x.mu.RUnlock()
	list := make([]kv.Owner, 0, len(x.ids))
	for o := range x.ids {
		list = append(list, o)
	}
	slices.SortFunc(list, kv.Owner.Compare)
	return list
}
