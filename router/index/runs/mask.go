package runs

import "math/bits"

// Mask is a set of positions of a run.
type Mask [2]uint64

// Span returns the positions lo..hi-1 of 0..MaxBlocks-1.
func Span(lo, hi int) Mask {
	return Mask{low(hi) &^ low(lo), low(max(hi-64, 0)) &^ low(max(lo-64, 0))}
}

// low returns a word with its n lowest bits set, all of them for n of 64 and more.
func low(n int) uint64 { return 1<<uint(n) - 1 }

// Has reports whether i is in the set.
func (m Mask) Has(i int) bool { return m[i>>6]>>(i&63)&1 != 0 }

// Set adds i.
func (m *Mask) Set(i int) { m[i>>6] |= 1 << (i & 63) }

// And returns the positions in both sets.
func (m Mask) And(o Mask) Mask { return Mask{m[0] & o[0], m[1] & o[1]} }

// Or returns the positions in either set.
func (m Mask) Or(o Mask) Mask { return Mask{m[0] | o[0], m[1] | o[1]} }

// Without returns the positions that are not in o.
func (m Mask) Without(o Mask) Mask { return Mask{m[0] &^ o[0], m[1] &^ o[1]} }

// Empty reports whether the set has no position.
func (m Mask) Empty() bool { return m[0]|m[1] == 0 }

// Count returns the number of positions.
func (m Mask) Count() int { return bits.OnesCount64(m[0]) + bits.OnesCount64(m[1]) }

// First returns the lowest position, or MaxBlocks for an empty set.
func (m Mask) First() int {
	if m[0] != 0 {
		return bits.TrailingZeros64(m[0])
	}
	return 64 + bits.TrailingZeros64(m[1])
}

// Last returns the highest position of a set that is not empty.
func (m Mask) Last() int {
	if m[1] != 0 {
		return 63 + bits.Len64(m[1])
	}
	return bits.Len64(m[0]) - 1
}

// Pop removes and returns the lowest position of a set that is not empty.
func (m *Mask) Pop() int {
	i := m.First()
	m[i>>6] &^= 1 << (i & 63)
	return i
}

// PopSpan removes and returns the lowest unbroken span lo..hi-1 of a set that is
// not empty.
func (m *Mask) PopSpan() (lo, hi int) {
	lo = m.First()
	var lowest Mask
	lowest.Set(lo)
	// The sum with the lowest bit carries through the span: it clears the span's bits and
	// sets the bit after them.
	a, carry := bits.Add64(m[0], lowest[0], 0)
	b, _ := bits.Add64(m[1], lowest[1], carry)
	sum := Mask{a, b}
	hi = sum.Without(*m).First()
	*m = m.And(sum)
	return lo, hi
}
