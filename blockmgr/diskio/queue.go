package diskio

import (
	"container/heap"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// RefQueue is a first-in first-out queue of slots. A slot may be in it once, so that the
// number of slots bounds it. The zero value is empty.
type RefQueue struct {
	buf  []registry.Ref
	head int
}

// Len returns the number of slots in the queue.
func (q *RefQueue) Len() int { return len(q.buf) - q.head }

// Push appends a slot that is not in the queue.
func (q *RefQueue) Push(ref registry.Ref) {
	if q.head > len(q.buf)/2 { // more than half of buf has been popped: use that part again
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, ref)
}

// Pop takes the oldest slot. The queue must not be empty.
func (q *RefQueue) Pop() registry.Ref {
	ref := q.buf[q.head]
	q.head++
	return ref
}

// Forget removes the slots of one extent.
func (q *RefQueue) Forget(extent uint32) {
	q.buf = slices.DeleteFunc(q.buf[q.head:], func(r registry.Ref) bool { return r.Extent() == extent })
	q.head = 0
}

// WriteQueue is a queue of slots by priority, highest first, and then by age, oldest first. A
// slot may be in it once. The zero value is empty.
type WriteQueue struct {
	items writeHeap
	// pushed counts the pushes: it orders slots of equal priority.
	pushed uint64
}

// Len returns the number of slots in the queue.
func (q *WriteQueue) Len() int { return len(q.items) }

// Push adds a slot that is not in the queue.
func (q *WriteQueue) Push(ref registry.Ref, priority uint32) {
	q.pushed++
	heap.Push(&q.items, writeItem{ref, priority, q.pushed})
}

// Pop takes the first slot. The queue must not be empty.
func (q *WriteQueue) Pop() registry.Ref { return heap.Pop(&q.items).(writeItem).ref }

// writeItem is one slot that waits for the disk.
type writeItem struct {
	ref      registry.Ref
	priority uint32
	age      uint64
}

// writeHeap implements heap.Interface.
type writeHeap []writeItem

func (h writeHeap) Len() int      { return len(h) }
func (h writeHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h writeHeap) Less(i, j int) bool {
	if h[i].priority != h[j].priority {
		return h[i].priority > h[j].priority
	}
	return h[i].age < h[j].age
}

func (h *writeHeap) Push(x any) { *h = append(*h, x.(writeItem)) }

func (h *writeHeap) Pop() any {
	last := len(*h) - 1
	item := (*h)[last]
	*h = (*h)[:last]
	return item
}
