package tier

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// Ancestry says on which block another one stands. A lookup has no use for a block without the
// block that it stands on, so a tier evicts children before their parents.
//
// A block of the primary group stands on the one before it. A block of another KV group stands on
// the last block of the primary group that ends where it ends, or before. The zero Ancestry is that
// of a model without groups, where every block is in group 0.
type Ancestry struct {
	// Primary is the number of the primary group.
	Primary uint32
	// pages is how many chain blocks a block of the primary group has, less one.
	pages uint32
}

// AncestryOf returns the Ancestry of a namespace.
func AncestryOf(ns *kv.Namespace) Ancestry {
	gs := ns.KVGroups()
	if len(gs) == 0 {
		return Ancestry{}
	}
	primary := gs.Primary()
	return Ancestry{Primary: uint32(primary), pages: gs[primary].BlockSize/ns.BlockSize - 1}
}

// Parent returns the key of the block that a block stands on. parent is Block.Parent, position
// Block.Position. ok is false for a block that stands on none.
func (a Ancestry) Parent(key kv.StoredKey, parent kv.BlockKey, position uint32) (of kv.StoredKey, ok bool) {
	if key.Group() == a.Primary {
		return parent.InGroup(a.Primary), position > a.pages
	}
	return parent.InGroup(a.Primary), position >= a.pages
}

// GroupBlock returns a block of KV group g of a sequence: its block with index block. chain has the
// sequence's chain blocks, of page tokens each and in group 0. The block's last chain block must be
// in chain. gs are the groups; without any the block is a chain block.
func GroupBlock(gs kvgroup.Groups, page uint32, chain []Block, g, block uint32) Block {
	if len(gs) == 0 {
		return chain[block]
	}
	b := chain[gs[g].ChainBlock(block, page)]
	root := chain[0].Parent
	primary := uint32(gs.Primary())
	pages := gs[primary].BlockSize / page
	// before is the number of blocks of the primary group up to the one that b stands on.
	before := (b.Position + 1) / pages
	if g == primary {
		before--
	}
	b.Key = b.Key.Block().InGroup(g)
	b.Parent, b.ParentSeq = root, 0
	if before > 0 {
		parent := &chain[before*pages-1]
		b.Parent, b.ParentSeq = parent.Key.Block(), parent.Seq
	}
	return b
}
