package residency

import "github.com/blockyard-ai/blockyard/internal/kv"

// maxPosition is the last position in a sequence that a table can hold.
const maxPosition = 1<<30 - 1

// inGroup marks a Block of another KV group than the primary one.
const inGroup = 1 << 31

// Block is an entry of a stream's table. Its key is the block's SequenceHash. A block in
// the table has at least one reference.
//
// A block of another KV group than the primary one has kv.InGroup of its SequenceHash as the
// key, and the SequenceHash as Parent.
type Block struct {
	Parent kv.SequenceHash
	Local  kv.LocalHash
	Packed uint32 // position times two, plus one with a parent; or inGroup and twice the group
	Refs   Refs
}

// newGroupBlock returns a block of a group, which ends where block h of the primary group ends,
// without references.
func newGroupBlock(h kv.SequenceHash, group uint32) Block {
	return Block{Parent: h, Packed: inGroup | group<<1}
}

// Group returns the block's KV group, 0 for the primary one.
func (b *Block) Group() uint32 {
	if b.Packed&inGroup == 0 {
		return 0
	}
	return b.Packed &^ inGroup >> 1
}

// NewBlock returns a block without references at a position, counted in blocks.
func NewBlock(parent kv.SequenceHash, hasParent bool, position uint32, local kv.LocalHash) Block {
	b := Block{Parent: parent, Local: local, Packed: min(position, maxPosition) << 1} // bit 0: has a parent
	if hasParent {
		b.Packed |= 1
	}
	return b
}

// Position returns the block's position in its sequence, counted in blocks. A block of another group
// than the primary one has no position.
func (b *Block) Position() uint32 { return b.Packed >> 1 }

// HasParent reports whether the block has a parent. Without one, Parent has no meaning.
func (b *Block) HasParent() bool { return b.Packed&1 != 0 }

// Refs are packed counts of references, one per tier. The limits are 4095 in the device
// tier, 255 in the host tier and 63 in each other tier. The device has the highest limit:
// requests that compute the same content at once each have a copy there.
type Refs uint32

var (
	refShifts = [kv.NumTiers]uint8{0, 12, 20, 26}
	refLimits = [kv.NumTiers]Refs{4095, 255, 63, 63}
)

// RefLimit returns the highest count that Refs can hold in tier t.
func RefLimit(t kv.Tier) uint32 { return uint32(refLimits[t]) }

// Of returns the number of references in tier t.
func (r Refs) Of(t kv.Tier) uint32 { return uint32(r >> refShifts[t] & refLimits[t]) }

// Add adds one reference in tier t. It returns false, and changes nothing, when the count
// is at its limit.
func (r *Refs) Add(t kv.Tier) bool {
	if *r>>refShifts[t]&refLimits[t] == refLimits[t] {
		return false
	}
	*r += 1 << refShifts[t]
	return true
}

// Drop takes one reference in tier t away. The count must not be 0.
func (r *Refs) Drop(t kv.Tier) { *r -= 1 << refShifts[t] }

// Set makes the count in tier t n. n must be at most RefLimit.
func (r *Refs) Set(t kv.Tier, n uint32) {
	*r = *r&^(refLimits[t]<<refShifts[t]) | Refs(n)<<refShifts[t]
}

// excessRefs counts the references beyond the limits of Refs, by slot and tier. They
// occur with engines whose block hashes cover tokens after the block: the block then has
// one hash, and one reference, per continuation.
type excessRefs map[refKey]uint64

type refKey struct {
	slot uint32
	tier kv.Tier
}

// drop takes one reference away. It returns false when there is none.
func (m excessRefs) drop(k refKey) bool {
	n := m[k]
	switch n {
	case 0:
		return false
	case 1:
		delete(m, k)
	default:
		m[k] = n - 1
	}
	return true
}
