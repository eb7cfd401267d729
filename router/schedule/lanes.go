package schedule

import (
	"container/heap"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// lane has the waiting requests that may go to the same workers, in order. A lane is awake
// while it may have a free worker. It sleeps, and costs nothing, while all its workers are
// known to be busy.
type lane struct {
	key laneKey
	// waiting is never empty.
	waiting itemHeap
	// awakeIndex is the position in Queue.awake, notInHeap while the lane sleeps.
	awakeIndex int
	// serving are the members that may serve the lane, as of the change of members
	// number servingAsOf. The scheduler maintains both.
	serving     bits
	servingAsOf uint64
}

// laneKey is equal for requests that may go to the same workers.
type laneKey struct {
	pinned   kv.Worker
	isPinned bool
	// allowed encodes the ids of the allowed workers, taints the required taints. Both are
	// sorted. Different sets have different encodings.
	limited         bool
	allowed, taints string
}

// prepare computes the item's lane key. That takes time with a large set, so callers prepare
// an item before they lock. The key is kept until the item leaves a queue.
func (i *Item) prepare() { i.key, i.prepared = i.laneKey(), true }

// laneKey returns the key of the item's lane: a comparable form of the workers that may
// serve the item. Sets are sorted and encoded as strings. A prepared item has the key already.
func (i *Item) laneKey() laneKey {
	if i.prepared {
		return i.key
	}
	if i.Pinned != nil {
		return laneKey{pinned: *i.Pinned, isPinned: true}
	}
	k := laneKey{limited: i.Allowed != nil}
	if len(i.Allowed) > 0 {
		b := make([]byte, 0, 8*len(i.Allowed))
		for _, id := range slices.Sorted(maps.Keys(i.Allowed)) {
			b = binary.BigEndian.AppendUint64(b, uint64(id))
		}
		k.allowed = string(b)
	}
	if len(i.RequiredTaints) > 0 {
		var b []byte // each taint behind its length, so that no two sets look alike
		for _, t := range slices.Compact(slices.Sorted(slices.Values(i.RequiredTaints))) {
			b = binary.AppendUvarint(b, uint64(len(t)))
			b = append(b, t...)
		}
		k.taints = string(b)
	}
	return k
}

// laneFor returns the lane of an item: the waiting requests that may go to the same workers.
// It creates a missing lane, asleep, and enters it where Released finds it: by its allowed
// workers, or in q.lanesForAll.
func (q *Queue) laneFor(i *Item) *lane {
	k := i.laneKey()
	l := q.lanes[k]
	if l != nil {
		return l
	}
	l = &lane{key: k, awakeIndex: notInHeap}
	q.lanes[k] = l
	switch {
	case k.isPinned: // Released finds it by its key
	case !k.limited:
		q.lanesForAll[l] = struct{}{}
	default:
		for id := range i.Allowed {
			if q.lanesByAllowed[id] == nil {
				q.lanesByAllowed[id] = make(map[*lane]struct{}, 1)
			}
			q.lanesByAllowed[id][l] = struct{}{}
		}
		q.allowedIDs += len(i.Allowed)
	}
	return l
}

// fix restores the order of the heap q.awake after the first request of lane l has changed. A
// sleeping lane stays asleep: its workers are busy for a new first request too.
func (q *Queue) fix(l *lane) {
	if l.awakeIndex != notInHeap {
		heap.Fix(&q.awake, l.awakeIndex)
	}
}

// dropLane removes a lane without requests from all structures of the queue.
func (q *Queue) dropLane(l *lane) {
	if l.awakeIndex != notInHeap {
		heap.Remove(&q.awake, l.awakeIndex)
	}
	delete(q.lanes, l.key)
	delete(q.lanesForAll, l)
	q.allowedIDs -= len(l.key.allowed) / 8 // the key has each allowed id in 8 bytes
	for b := []byte(l.key.allowed); len(b) > 0; b = b[8:] {
		id := kv.WorkerID(binary.BigEndian.Uint64(b))
		delete(q.lanesByAllowed[id], l)
		if len(q.lanesByAllowed[id]) == 0 {
			delete(q.lanesByAllowed, id)
		}
	}
}

// Released makes Next try the requests that worker w may serve, because the load of w has
// dropped. It wakes their lanes and leaves all others asleep. taints are the labels of w.
func (q *Queue) Released(w kv.Worker, taints []string) {
	if q.stats.Pending == 0 {
		return
	}
	q.wake(q.lanes[laneKey{pinned: w, isPinned: true}])
	for l := range q.lanesForAll {
		if l.satisfiedBy(taints) {
			q.wake(l)
		}
	}
	for l := range q.lanesByAllowed[w.ID] {
		if l.satisfiedBy(taints) {
			q.wake(l)
		}
	}
}

// satisfiedBy reports whether a worker with these taints, its labels, may serve the requests
// of the lane. All requests of a lane require the same taints.
func (l *lane) satisfiedBy(taints []string) bool {
	for _, t := range l.waiting[0].RequiredTaints {
		if !slices.Contains(taints, t) {
			return false
		}
	}
	return true
}

// WakeAll makes Next try every waiting request. Call it when the workers or thresholds have
// changed, or when time has reduced pending prefills.
func (q *Queue) WakeAll() {
	for _, l := range q.lanes {
		q.wake(l)
	}
}

// wake wakes a lane; nil does nothing.
func (q *Queue) wake(l *lane) {
	if l != nil && l.awakeIndex == notInHeap {
		heap.Push(&q.awake, l)
	}
}

// notInHeap is the position of an element that is in no heap.
const notInHeap = -1

// itemHeap is a heap of items for container/heap. The items know their positions.
type itemHeap []*Item

// Len implements heap.Interface.
func (h itemHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h itemHeap) Less(i, j int) bool { return h[i].before(h[j]) }

// Swap implements heap.Interface.
func (h itemHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].laneIndex, h[j].laneIndex = i, j
}

// Push implements heap.Interface.
func (h *itemHeap) Push(x any) {
	i := x.(*Item)
	i.laneIndex = len(*h)
	*h = append(*h, i)
}

// Pop implements heap.Interface.
func (h *itemHeap) Pop() any {
	last := len(*h) - 1
	i := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	i.laneIndex = notInHeap
	return i
}

// laneHeap is a heap of lanes for container/heap, ordered by their first requests. The lanes
// know their positions.
type laneHeap []*lane

// Len implements heap.Interface.
func (h laneHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h laneHeap) Less(i, j int) bool { return h[i].waiting[0].before(h[j].waiting[0]) }

// Swap implements heap.Interface.
func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].awakeIndex, h[j].awakeIndex = i, j
}

// Push implements heap.Interface.
func (h *laneHeap) Push(x any) {
	l := x.(*lane)
	l.awakeIndex = len(*h)
	*h = append(*h, l)
}

// Pop implements heap.Interface.
func (h *laneHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.awakeIndex = notInHeap
	return l
}
