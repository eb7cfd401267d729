package zmqsink

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of what waits for the sending goroutine.
const (
	maxQueueItems  = 64 << 10
	maxQueueBlocks = 256 << 10
	maxQueueBytes  = 64 << 20 // of raw payloads
)

// item is an event without its blocks, which are n from index from on of the queue's
// stored or removed blocks; or a raw payload.
type item struct {
	event   kvevent.RouterEvent
	from, n int
	payload []byte
	// lost: a payload had to be dropped here.
	lost bool
}

// queue holds copies of what was published, in order. Its memory is used again from
// one filling to the next.
type queue struct {
	items    []item
	stored   []kvevent.StoredBlock
	removed  []kv.SequenceHash
	rawBytes int
}

// add copies an event; false: there is no room.
func (q *queue) add(e *kvevent.RouterEvent) bool {
	if len(q.items) >= maxQueueItems || len(q.stored)+len(q.removed)+e.NumBlocks() > maxQueueBlocks {
		return false
	}
	it := item{event: *e}
	it.event.Blocks, it.event.Removed = nil, nil
	if e.Kind == kvevent.Stored {
		it.from, it.n = len(q.stored), len(e.Blocks)
		q.stored = append(q.stored, e.Blocks...)
	} else {
		it.from, it.n = len(q.removed), len(e.Removed)
		q.removed = append(q.removed, e.Removed...)
	}
	q.items = append(q.items, it)
	return true
}

// addRaw keeps a payload; false: there is no room, and the place of one payload is
// marked as lost. The mark may go beyond the bounds by one item.
func (q *queue) addRaw(payload []byte) bool {
	if len(q.items) < maxQueueItems && q.rawBytes+len(payload) <= maxQueueBytes {
		q.items = append(q.items, item{payload: payload})
		q.rawBytes += len(payload)
		return true
	}
	if n := len(q.items); n == 0 || !q.items[n-1].lost {
		q.items = append(q.items, item{lost: true})
	}
	return false
}

// event is an item's event with its blocks, which are lent until the queue is reset.
func (q *queue) event(it *item) kvevent.RouterEvent {
	e := it.event
	if e.Kind == kvevent.Stored {
		e.Blocks = q.stored[it.from : it.from+it.n]
	} else {
		e.Removed = q.removed[it.from : it.from+it.n]
	}
	return e
}

// dropEvents forgets the events and keeps the payloads; it returns how many went.
func (q *queue) dropEvents() int {
	kept := q.items[:0]
	for _, it := range q.items {
		if it.payload != nil || it.lost {
			kept = append(kept, it)
		}
	}
	n := len(q.items) - len(kept)
	clear(q.items[len(kept):])
	q.items, q.stored, q.removed = kept, q.stored[:0], q.removed[:0]
	return n
}

func (q *queue) reset() {
	clear(q.items)
	q.items, q.stored, q.removed, q.rawBytes = q.items[:0], q.stored[:0], q.removed[:0], 0
}
