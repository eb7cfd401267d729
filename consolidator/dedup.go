package consolidator

import (
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// DedupSource is who says that it holds a block.
type DedupSource uint8

const (
	// DedupEngine is the engine, with its device tier and perhaps others.
	DedupEngine DedupSource = iota
	// DedupPool is the block manager, KVBM in Dynamo's words.
	DedupPool

	numDedupSources = 2
)

// DedupBlock is one block as a source stores it. Sources may call a block by
// names of their own; which block it is, they agree on.
type DedupBlock struct {
	// ID is which block it is: its tokens, LoRA, salt and prefix.
	ID kv.SequenceHash
	// Name is what the source calls it.
	Name kv.EngineHash
	// Parent and ParentName are those of the block before it; meaningless without
	// HasParent.
	Parent     kv.SequenceHash
	ParentName kv.EngineHash
	HasParent  bool
}

// DedupStored is a store to publish: the name of a block, and that of the block
// before it, which is meaningless without HasParent.
type DedupStored struct {
	Name, Parent kv.EngineHash
	HasParent    bool
}

// DedupStats are a Dedup's counters since it was made, and what it holds.
type DedupStats struct {
	// Stored and Removed are the changes to publish.
	Stored  uint64 `json:"stored"`
	Removed uint64 `json:"removed"`
	// Repeated are stores of blocks that were published before, Kept removals
	// that left their block with another source, in another tier or in another
	// copy.
	Repeated uint64 `json:"repeated"`
	Kept     uint64 `json:"kept"`
	// Orphans are stores that were published behind a block that nobody holds,
	// under the name that their source has for it.
	Orphans uint64 `json:"orphans"`
	// UnknownRemoves are removals, dropped, of what the source did not have in the
	// tier; TableFull and RefOverflows are stores, dropped, of one block or one copy
	// too many.
	UnknownRemoves uint64 `json:"unknown_removes"`
	TableFull      uint64 `json:"table_full"`
	RefOverflows   uint64 `json:"ref_overflows"`
	// Blocks is how many blocks are held now.
	Blocks uint64 `json:"blocks"`
}

// dedupBlock is a block that somebody holds. It has no pointers: the table
// scales with blocks and must cost the garbage collector nothing.
type dedupBlock struct {
	name kv.EngineHash // the first source's, until the last one leaves
	refs [numDedupSources][kv.NumTiers]uint16
}

func (b *dedupBlock) isHeld() bool { return b.refs != [numDedupSources][kv.NumTiers]uint16{} }

// Dedup merges what an engine and the block manager say of their blocks into one
// stream without tiers, as KVBM's consolidator does in its mode "dedup". A block
// is stored when its first source stores it, under that source's name, and
// removed, under the same name, when the last one has removed it from its last
// tier. It is for the ZMQ sink in the engines' own format, whose consumers know
// one source and no tiers; the native streams keep tiers apart and do without.
//
// It leaves out what makes KVBM's claim blocks that are gone and deny blocks
// that are there. Each (source, tier) is counted, so that a block that leaves the
// host while it is on disk stays. Identity takes in LoRA and salt. An engine's
// clear takes what the engine has in its device tier, and nothing of the pool's.
//
// A Dedup is not safe for concurrent use: whoever publishes what it returns
// holds one lock over both, or the order of the changes would be lost. A Store or
// Remove takes constant time.
type Dedup struct {
	maxBlocks int
	blocks    map[kv.SequenceHash]dedupBlock
	stats     DedupStats
}

// NewDedup returns one that holds at most maxBlocks blocks; 0 or less means
// 8 Mi.
func NewDedup(maxBlocks int) *Dedup {
	if maxBlocks <= 0 {
		maxBlocks = defaultMaxBlocks
	}
	return &Dedup{maxBlocks: maxBlocks, blocks: make(map[kv.SequenceHash]dedupBlock)}
}

// Store says that source s has a copy of b in tier t. The second result is false
// when there is nothing to publish. The parent of what there is goes by the name
// that it was published with.
func (d *Dedup) Store(s DedupSource, t kv.Tier, b DedupBlock) (DedupStored, bool) {
	block, known := d.blocks[b.ID]
	if !known {
		if len(d.blocks) >= d.maxBlocks {
			d.stats.TableFull++
			return DedupStored{}, false
		}
		block.name = b.Name
	}
	if block.refs[s][t] == math.MaxUint16 {
		d.stats.RefOverflows++
		return DedupStored{}, false
	}
	block.refs[s][t]++
	d.blocks[b.ID] = block
	if known {
		d.stats.Repeated++
		return DedupStored{}, false
	}
	d.stats.Stored++
	stored := DedupStored{Name: b.Name, HasParent: b.HasParent}
	if b.HasParent {
		parent, held := d.blocks[b.Parent]
		if stored.Parent = parent.name; !held {
			stored.Parent = b.ParentName
			d.stats.Orphans++
		}
	}
	return stored, true
}

// Remove says that source s has a copy of the block less in tier t. It returns
// the name to publish as removed; the second result is false when there is
// nothing to publish.
func (d *Dedup) Remove(s DedupSource, t kv.Tier, id kv.SequenceHash) (kv.EngineHash, bool) {
	block := d.blocks[id]
	if block.refs[s][t] == 0 {
		d.stats.UnknownRemoves++
		return 0, false
	}
	block.refs[s][t]--
	return d.reduced(id, block)
}

// Clear says that source s has nothing left in tier t. It returns the names to
// publish as removed, in any order, and takes time in proportion to all blocks.
func (d *Dedup) Clear(s DedupSource, t kv.Tier) []kv.EngineHash {
	var removed []kv.EngineHash
	for id, block := range d.blocks {
		if block.refs[s][t] == 0 {
			continue
		}
		block.refs[s][t] = 0
		if name, gone := d.reduced(id, block); gone {
			removed = append(removed, name)
		}
	}
	return removed
}

// Stats returns the counters.
func (d *Dedup) Stats() DedupStats {
	stats := d.stats
	stats.Blocks = uint64(len(d.blocks))
	return stats
}

// reduced puts back a block of which somebody has fewer copies. The result is
// its name, and true when nobody has one.
func (d *Dedup) reduced(id kv.SequenceHash, block dedupBlock) (kv.EngineHash, bool) {
	if block.isHeld() {
		d.blocks[id] = block
		d.stats.Kept++
		return 0, false
	}
	delete(d.blocks, id)
	d.stats.Removed++
	return block.name, true
}
