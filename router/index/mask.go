package index

import "math/bits"

// mask is a set of positions of a run.
type mask [2]uint64

// spanMask is the positions lo..hi-1.
func spanMask(lo, hi int) mask {
	return mask{low(hi) &^ low(lo), low(hi-64) &^ low(lo-64)}
}

// low is a word with its n lowest bits set; n is taken as 0 below and as 64
// above what a word has.
func low(n int) uint64 {
	if n <= 0 {
		return 0
	}
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

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
	hi = mask{^m[0], ^m[1]}.and(spanMask(lo, runBlocks)).first()
	*m = m.without(spanMask(lo, hi))
	return lo, hi
}
