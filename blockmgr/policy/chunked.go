package policy

// chunkLen is the number of elements that a chunked array grows by. With
// elements of 16 bytes that is 64 KiB: small enough that no caller notices one
// being made, and, at 10 million elements, 2,442 pointers for the collector.
const chunkLen = 1 << 12

// chunked is an array that grows and shrinks at its end without moving its
// elements. T must hold no pointer, so that the collector does not look inside.
type chunked[T any] struct {
	chunks []*[chunkLen]T
}

func (c *chunked[T]) at(i uint32) *T { return &c.chunks[i/chunkLen][i%chunkLen] }

// growTo grows the array until it has element i.
func (c *chunked[T]) growTo(i uint32) {
	for uint32(len(c.chunks)) <= i/chunkLen {
		c.chunks = append(c.chunks, new([chunkLen]T))
	}
}

// trim drops the chunks beyond the first n elements.
func (c *chunked[T]) trim(n uint32) {
	keep := int((uint64(n) + chunkLen - 1) / chunkLen)
	if keep < len(c.chunks) {
		clear(c.chunks[keep:])
		c.chunks = c.chunks[:keep]
	}
}
