package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// OwnedBlock is a block that an owner holds, and in which tiers.
type OwnedBlock struct {
	Hash  kv.SequenceHash
	Tiers kv.TierMask
}

// AppendBlocks appends everything that an owner holds at one moment, in no order.
func (x *Index) AppendBlocks(dst []OwnedBlock, o kv.Owner) []OwnedBlock {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for r := x.owners[x.ids[o]].first; r != noCell; {
		c := x.table.at(r)
		dst = append(dst, OwnedBlock{c.hash, c.tiers()})
		r = c.nextOwned
	}
	return dst
}
