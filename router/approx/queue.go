package approx

import "github.com/blockyard-ai/blockyard/internal/kv"

// routedBlock is a block that a worker is expected to hold. It is an element of the queue
// of blocks that expire.
type routedBlock struct {
	worker kv.Worker
	hash   kv.SequenceHash
	// due is the tick at which the block expires.
	due        int64
	prev, next uint32
}

// noRouted ends the queue and the free list.
const noRouted uint32 = 0

// routedQueue orders routed blocks by expiry. All blocks live equally long, so a
// new block expires last, and a block that is routed again moves to the end. A
// queue is for one goroutine.
type routedQueue struct {
	// blocks[noRouted] is the ring's anchor. Its next is the block that expires
	// first, its prev the block that expires last.
	blocks []routedBlock
	free   uint32
	size   int
	// held finds the blocks of a worker. Workers without blocks are not in it.
	held map[kv.Worker]map[kv.SequenceHash]uint32
}

func newRoutedQueue() routedQueue {
	return routedQueue{blocks: make([]routedBlock, 1), held: make(map[kv.Worker]map[kv.SequenceHash]uint32)}
}

// first returns the block that expires first, or noRouted.
func (q *routedQueue) first() uint32 { return q.blocks[noRouted].next }

// push puts blocks of a worker at the end, the last block first, so that no block
// expires before its descendants.
func (q *routedQueue) push(w kv.Worker, seq []kv.SequenceHash, due int64) {
	held := q.held[w]
	if held == nil {
		held = make(map[kv.SequenceHash]uint32, len(seq))
		q.held[w] = held
	}
	for i := len(seq) - 1; i >= 0; i-- {
		at, ok := held[seq[i]]
		if ok {
			q.unlink(at)
		} else {
			at = q.take()
			held[seq[i]] = at
		}
		last := q.blocks[noRouted].prev
		q.blocks[at] = routedBlock{worker: w, hash: seq[i], due: due, prev: last}
		q.blocks[last].next = at
		q.blocks[noRouted].prev = at
	}
}

func (q *routedQueue) take() uint32 {
	q.size++
	if at := q.free; at != noRouted {
		q.free = q.blocks[at].next
		return at
	}
	q.blocks = append(q.blocks, routedBlock{})
	return uint32(len(q.blocks) - 1)
}

func (q *routedQueue) unlink(at uint32) {
	b := &q.blocks[at]
	q.blocks[b.prev].next = b.next
	q.blocks[b.next].prev = b.prev
}

// remove takes a block out.
func (q *routedQueue) remove(at uint32) {
	b := &q.blocks[at]
	q.unlink(at)
	held := q.held[b.worker]
	if delete(held, b.hash); len(held) == 0 {
		delete(q.held, b.worker)
	}
	*b = routedBlock{next: q.free}
	q.free = at
	q.size--
}

// removeWorker takes out every block of a worker and returns their number.
func (q *routedQueue) removeWorker(w kv.Worker) int {
	held := q.held[w]
	n := len(held)
	for _, at := range held {
		q.remove(at)
	}
	return n
}
