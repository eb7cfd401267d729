package index

import "math/bits"

// mask is a set of positions of a run.
type mask [2]uint64

// spanMask is the positions lo..hi-1 of 0..runBlocks-1.
func spanMask(lo, hi int) mask {
	return mask{low(hi) &^ low(lo), low(max(hi-64, 0)) &^ low(max(lo-64, 0))}
}

// low is a word with its n lowest bits set, all of them if it has no more.
func low(n int) uint64 { return 1<<uint(n) - 1 }

func (m mask) has(i int) bool      { return m[i>>6]>>(i&63)&1 != 0 }
func (m *mask) set(i int)          { m[i>>6] |= 1 << (i & 63) }
func (m mask) and(o mask) mask     { return mask{m[0] & o[0], m[1] & o[1]} }
func (m mask) or(o mask) mask      { return mask{m[0] | o[0], m[1] | o[1]} }
func (m mask) without(o mask) mask { return mask{m[0] &^ o[0], m[1] &^ o[1]} }
func (m mask) empty() bool         { return m[0]|m[1] == 0 }
func (m mask) count() int          { return bits.OnesCount64(m[0]) + bits.OnesCount64(m[1]) }

// first is the lowest position; runBlocks when there is none.
func (m mask) first() int {
	if m[0] != 0 {
		return bits.TrailingZeros64(m[0])
	}
	return 64 + bits.TrailingZeros64(m[1])
}

// last is the highest position of a set that is not empty.
func (m mask) last() int {
	if m[1] != 0 {
		return 63 + bits.Len64(m[1])
	}
	return bits.Len64(m[0]) - 1
}

// pop takes the lowest position out of a set that is not empty.
func (m *mask) pop() int {
	i := m.first()
	m[i>>6] &^= 1 << (i & 63)
	return i
}

// popSpan takes the lowest unbroken span lo..hi-1 out of a set that is not
// empty.
func (m *mask) popSpan() (lo, hi int) {
	lo = m.first()
	var lowest mask
	lowest.set(lo)
	// Adding its lowest bit carries through the span to the bit behind it.
	a, carry := bits.Add64(m[0], lowest[0], 0)
	b, _ := bits.Add64(m[1], lowest[1], carry)
	behind := mask{a, b}
	hi = behind.without(*m).first()
	*m = m.and(behind)
	return lo, hi
}
