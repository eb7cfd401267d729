package queue

import (
	"container/heap"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// lane has the waiting requests of a class that may go to the same workers, in order. A lane is awake
// while it may have a free worker. It sleeps, and costs nothing, while all its workers are
// known to be busy.
type lane struct {
	key   laneKey
	class *classQueue
	// waiting is never empty.
	waiting itemHeap
	// awakeIndex is the position in classQueue.awake, notInHeap while the lane sleeps.
	awakeIndex int
	// tokens is the sum of the uncached tokens of waiting.
	tokens int
	note   Note
}

// laneKey is equal for requests of one class that may go to the same workers, have the same
// favourite, and are overdue or not.
type laneKey struct {
	class int
	// worker is the pinned worker if isPinned, the favourite if isHeld.
	worker           kv.Worker
	isPinned, isHeld bool
	isOverdue        bool
	// allowed encodes the ids of the allowed workers, taints the required taints. Both are
	// sorted. Different sets have different encodings.
	limited         bool
	allowed, taints string
}

// Note is what the owner of a Queue keeps for the requests of one class that may go to the same
// workers: those workers as a bit set, as of a change of the workers. The queue does not use it.
type Note struct {
	Serving     []uint64
	ServingAsOf uint64
}

// Note returns the note that a waiting item shares with the items like it.
func (i *Item) Note() *Note { return &i.lane.note }

// Waiting reports whether the item is in a queue.
func (i *Item) Waiting() bool { return i.lane != nil }

// Prepare computes which items are like this one. That takes time with a large set, so callers prepare
// an item before they lock. The result is kept until the item leaves a queue.
func (i *Item) Prepare() { i.key, i.prepared = i.laneKey(), true }

// SetClass sets the number of the item's class in Options.
func (i *Item) SetClass(n int) { i.Class, i.key.class = n, n }

// SetFavourite makes the item wait for a busy worker although another one is free.
func (i *Item) SetFavourite(w kv.Worker) { i.Favourite, i.prepared = &w, false }

// laneKey returns the key of the item's lane: a comparable form of the workers that may
// serve the item. Sets are sorted and encoded as strings. A prepared item has the key already.
func (i *Item) laneKey() laneKey {
	if i.prepared {
		return i.key
	}
	if i.Pinned != nil {
		return laneKey{class: i.Class, worker: *i.Pinned, isPinned: true, isOverdue: i.Overdue}
	}
	k := laneKey{class: i.Class, limited: i.Allowed != nil, isOverdue: i.Overdue}
	if i.Favourite != nil {
		k.worker, k.isHeld = *i.Favourite, true
	}
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
// It creates a missing lane, asleep, and enters it where Released finds it: by its pinned
// or favourite worker, by its allowed workers, or in q.lanesForAll.
func (q *Queue) laneFor(i *Item) *lane {
	k := i.laneKey()
	l := q.lanes[k]
	if l != nil {
		return l
	}
	l = &lane{key: k, class: q.classes[i.Class], awakeIndex: notInHeap}
	q.lanes[k] = l
	if k.isHeld {
		q.held[l] = struct{}{}
	}
	q.allowedIDs += len(k.allowed) / 8 // the key has each allowed id in 8 bytes
	switch {
	case k.isPinned || k.isHeld:
		link(q.lanesByWorker, k.worker, l)
	case !k.limited:
		q.lanesForAll[l] = struct{}{}
	default:
		for id := range i.Allowed {
			link(q.lanesByAllowed, id, l)
		}
	}
	return l
}

// link adds a lane to the lanes of a key.
func link[K comparable](lanes map[K]map[*lane]struct{}, key K, l *lane) {
	if lanes[key] == nil {
		lanes[key] = make(map[*lane]struct{}, 1)
	}
	lanes[key][l] = struct{}{}
}

// unlink takes a lane out of the lanes of a key.
func unlink[K comparable](lanes map[K]map[*lane]struct{}, key K, l *lane) {
	delete(lanes[key], l)
	if len(lanes[key]) == 0 {
		delete(lanes, key)
	}
}

// fix restores the order of the awake lanes of a class after the first request of lane l has changed. A
// sleeping lane stays asleep: its workers are busy for a new first request too.
func (q *Queue) fix(l *lane) {
	if l.awakeIndex != notInHeap {
		heap.Fix(&l.class.awake, l.awakeIndex)
	}
}

// dropLane removes a lane without requests from all structures of the queue.
func (q *Queue) dropLane(l *lane) {
	if l.awakeIndex != notInHeap {
		heap.Remove(&l.class.awake, l.awakeIndex)
	}
	delete(q.lanes, l.key)
	delete(q.held, l)
	delete(q.lanesForAll, l)
	unlink(q.lanesByWorker, l.key.worker, l)
	q.allowedIDs -= len(l.key.allowed) / 8
	for b := []byte(l.key.allowed); len(b) > 0; b = b[8:] {
		unlink(q.lanesByAllowed, kv.WorkerID(binary.BigEndian.Uint64(b)), l)
	}
}

// Released makes Next try the requests that worker w may serve, because the load of w has
// dropped. It wakes their lanes and leaves all others asleep. taints are the labels of w.
func (q *Queue) Released(w kv.Worker, taints []string) {
	if q.stats.Pending == 0 {
		return
	}
	for l := range q.lanesByWorker[w] {
		q.wake(l)
	}
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

// wake wakes a lane.
func (q *Queue) wake(l *lane) {
	if l.awakeIndex == notInHeap {
		heap.Push(&l.class.awake, l)
	}
}

// sleep lets a lane sleep until Released or WakeAll wakes it.
func (q *Queue) sleep(l *lane) {
	if l.awakeIndex != notInHeap {
		heap.Remove(&l.class.awake, l.awakeIndex)
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
