package diskio

import (
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// RefQueue is a first-in first-out queue of slots. Each slot is in it at most
// once, so that the number of slots bounds it.
type RefQueue struct {
	buf  []registry.Ref
	head int
}

// Len is the number of slots in the queue.
func (q *RefQueue) Len() int { return len(q.buf) - q.head }

// Push appends a slot that is not in the queue.
func (q *RefQueue) Push(ref registry.Ref) {
	if q.head > len(q.buf)/2 {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, ref)
}

// Forget removes the slots of one part.
func (q *RefQueue) Forget(part uint32) {
	q.buf = slices.DeleteFunc(q.buf[q.head:], func(r registry.Ref) bool { return r.Extent() == part })
	q.head = 0
}

// Pop takes the oldest slot; the queue must not be empty.
func (q *RefQueue) Pop() registry.Ref {
	ref := q.buf[q.head]
	q.head++
	return ref
}

// writeItem is one slot that waits for the disk.
type writeItem struct {
	ref      registry.Ref
	priority uint32
	age      uint64
}

// WriteQueue hands out the slot with the highest priority, of those the one that
// has waited longest: a binary heap. Each slot is in it at most once.
type WriteQueue struct {
	heap []writeItem
	next uint64
}

// Len is the number of slots in the queue.
func (q *WriteQueue) Len() int { return len(q.heap) }

func (q *WriteQueue) before(i, j int) bool {
	a, b := &q.heap[i], &q.heap[j]
	if a.priority != b.priority {
		return a.priority > b.priority
	}
	return a.age < b.age
}

// Push adds a slot that is not in the queue.
func (q *WriteQueue) Push(ref registry.Ref, priority uint32) {
	q.next++
	q.heap = append(q.heap, writeItem{ref, priority, q.next})
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.before(i, parent) {
			return
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// Pop takes the first slot; the queue must not be empty.
func (q *WriteQueue) Pop() registry.Ref {
	first, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(q.heap); c++ {
			if q.before(c, least) {
				least = c
			}
		}
		if least == i {
			return first.ref
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
