package engine

// none is the index of no block.
const none int32 = -1

// freeList is a queue of block indices, oldest first, from which any one can be
// taken out in constant time. It holds no pointers: prev and next are arrays
// over all blocks, and the last place is the list's head and tail.
type freeList struct {
	prev, next []int32
	n          int
}

// newFreeList returns the list 0, 1 … blocks-1.
func newFreeList(blocks int) freeList {
	l := freeList{prev: make([]int32, blocks+1), next: make([]int32, blocks+1)}
	head := int32(blocks)
	l.prev[head], l.next[head] = head, head
	for i := range int32(blocks) {
		l.pushBack(i)
	}
	return l
}

func (l *freeList) head() int32 { return int32(len(l.next) - 1) }

// pushBack adds b, which is not in the list, as the youngest.
func (l *freeList) pushBack(b int32) {
	h := l.head()
	last := l.prev[h]
	l.prev[b], l.next[b] = last, h
	l.next[last], l.prev[h] = b, b
	l.n++
}

// remove takes b, which is in the list, out of it.
func (l *freeList) remove(b int32) {
	l.next[l.prev[b]], l.prev[l.next[b]] = l.next[b], l.prev[b]
	l.prev[b], l.next[b] = none, none
	l.n--
}

// popFront takes the oldest block out; none when the list is empty.
func (l *freeList) popFront() int32 {
	b := l.next[l.head()]
	if b == l.head() {
		return none
	}
	l.remove(b)
	return b
}
