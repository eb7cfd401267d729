package approx

import "github.com/blockyard-ai/blockyard/internal/kv"

// routedBlock is a block that a worker is expected to hold, and an element of a
// routedQueue.
type routedBlock struct {
	worker kv.Worker
	hash   kv.SequenceHash
	// due is the tick at which the block expires.
	due        int64
	prev, next uint32
}

// noBlock is the slot that ends the queue and the free list.
const noBlock uint32 = 0

// routedQueue orders routed blocks by expiry. All blocks live equally long. So a new
// block expires last, and a block that is routed again moves to the end. A slot is an
// index of blocks. A queue is for one goroutine.
type routedQueue struct {
	// blocks is a ring, anchored at noBlock. The anchor's next is the block that
	// expires first. Its prev is the block that expires last.
	blocks []routedBlock
	free   uint32
	size   int
	// byWorker has the slots of each worker's blocks. Workers without blocks are not
	// in the map.
	byWorker map[kv.Worker]map[kv.SequenceHash]uint32
}

func newRoutedQueue() routedQueue {
	return routedQueue{blocks: make([]routedBlock, 1), byWorker: make(map[kv.Worker]map[kv.SequenceHash]uint32)}
}

// first returns the slot of the block that expires first, or noBlock.
func (q *routedQueue) first() uint32 { return q.blocks[noBlock].next }

// push adds the blocks of a prompt that worker w gets, or moves them to the end of the queue. due
// is the tick at which they expire. The last block goes first, so that no block expires before its
// descendants.
func (q *routedQueue) push(w kv.Worker, seq []kv.SequenceHash, due int64) {
	slots := q.byWorker[w]
	if slots == nil {
		slots = make(map[kv.SequenceHash]uint32, len(seq))
		q.byWorker[w] = slots
	}
	for i := len(seq) - 1; i >= 0; i-- {
		slot, ok := slots[seq[i]]
		if ok {
			q.unlink(slot)
		} else {
			slot = q.allocate()
			slots[seq[i]] = slot
		}
		last := q.blocks[noBlock].prev // noBlock is the anchor of the ring
		q.blocks[slot] = routedBlock{worker: w, hash: seq[i], due: due, prev: last}
		q.blocks[last].next = slot
		q.blocks[noBlock].prev = slot
	}
}

// allocate returns a free slot.
func (q *routedQueue) allocate() uint32 {
	q.size++
	if slot := q.free; slot != noBlock {
		q.free = q.blocks[slot].next
		return slot
	}
	q.blocks = append(q.blocks, routedBlock{})
	return uint32(len(q.blocks) - 1)
}

// unlink takes a slot out of the ring.
func (q *routedQueue) unlink(slot uint32) {
	b := &q.blocks[slot]
	q.blocks[b.prev].next = b.next
	q.blocks[b.next].prev = b.prev
}

// remove removes the block of a slot and frees the slot.
func (q *routedQueue) remove(slot uint32) {
	b := &q.blocks[slot]
	q.unlink(slot)
	slots := q.byWorker[b.worker]
	if delete(slots, b.hash); len(slots) == 0 {
		delete(q.byWorker, b.worker)
	}
	*b = routedBlock{next: q.free}
	q.free = slot
	q.size--
}

// removeWorker removes every block of a worker and returns their number.
func (q *routedQueue) removeWorker(w kv.Worker) int {
	slots := q.byWorker[w]
	n := len(slots)
	for _, slot := range slots {
		q.remove(slot)
	}
	return n
}
