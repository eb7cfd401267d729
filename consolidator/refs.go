package consolidator

import "github.com/blockyard-ai/blockyard/internal/kv"

// refCounts are counts of references per tier, packed: up to 4095 in the device
// tier, where requests that compute the same content at once each have a copy,
// 255 in the host tier, 63 in the others.
type refCounts uint32

var (
	refShifts = [kv.NumTiers]uint8{0, 12, 20, 26}
	refLimits = [kv.NumTiers]refCounts{4095, 255, 63, 63}
)

// of is the number of references in tier t.
func (r refCounts) of(t kv.Tier) uint32 { return uint32(r >> refShifts[t] & refLimits[t]) }

// add counts one more; false when the count is at its limit and stays.
func (r *refCounts) add(t kv.Tier) bool {
	if *r>>refShifts[t]&refLimits[t] == refLimits[t] {
		return false
	}
	*r += 1 << refShifts[t]
	return true
}

// drop counts one less; there must be one.
func (r *refCounts) drop(t kv.Tier) { *r -= 1 << refShifts[t] }

// set makes the count n, which must not exceed the limit of its tier.
func (r *refCounts) set(t kv.Tier, n uint32) {
	*r = *r&^(refLimits[t]<<refShifts[t]) | refCounts(n)<<refShifts[t]
}

// manyRefs holds the references beyond the limits of refCounts, by the block's slot
// and tier. An engine whose hashes look ahead has a hash for each continuation of a
// block, and each of them is a reference.
type manyRefs map[refKey]uint64

type refKey struct {
	slot uint32
	tier kv.Tier
}

// drop counts one less; false when there is none.
func (m manyRefs) drop(k refKey) bool {
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
