package blockmgr

import "slices"

// refQueue is a first-in first-out queue of slots. Each slot is in it at most
// once, so that the number of slots bounds it.
type refQueue struct {
	buf  []uint32
	head int
}

func (q *refQueue) len() int { return len(q.buf) - q.head }

func (q *refQueue) push(ref uint32) {
	if q.head > len(q.buf)/2 {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, ref)
}

// forget removes the slots from ref on.
func (q *refQueue) forget(ref uint32) {
	q.buf = slices.DeleteFunc(q.buf[q.head:], func(r uint32) bool { return r >= ref })
	q.head = 0
}

// pop takes the oldest slot; the queue must not be empty.
func (q *refQueue) pop() uint32 {
	ref := q.buf[q.head]
	q.head++
	return ref
}
