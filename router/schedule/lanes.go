package schedule

import (
	"container/heap"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// lane is the waiting requests that may go to the same workers.
type lane struct {
	key laneKey
	// waiting is never empty.
	waiting ranking[*Item]
	// at is the position in Queue.awake, notRanked while the lane sleeps.
	at int
	// may are the members that may serve the lane, as of alignment number aligned.
	// The scheduler maintains both.
	may     bits
	aligned uint64
}

func (l *lane) position() *int      { return &l.at }
func (l *lane) before(m *lane) bool { return l.waiting[0].before(m.waiting[0]) }

// laneKey is equal for requests that may go to the same workers.
type laneKey struct {
	pinned   kv.Worker
	isPinned bool
	// allowed are the ids of the allowed workers, taints the required taints. Both
	// are sorted and encoded so that different sets differ.
	limited         bool
	allowed, taints string
}

// prepare computes the item's lane key, which takes time with a large set. The key
// is kept until the item leaves a queue.
func (i *Item) prepare() { i.key, i.keyed = i.laneKey(), true }

func (i *Item) laneKey() laneKey {
	if i.keyed {
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
		var b []byte
		for _, t := range slices.Compact(slices.Sorted(slices.Values(i.RequiredTaints))) {
			b = binary.AppendUvarint(b, uint64(len(t)))
			b = append(b, t...)
		}
		k.taints = string(b)
	}
	return k
}

// laneFor returns the lane of an item, a new one if there is none.
func (q *Queue) laneFor(i *Item) *lane {
	k := i.laneKey()
	l := q.lanes[k]
	if l != nil {
		return l
	}
	l = &lane{key: k, at: notRanked}
	q.lanes[k] = l
	switch {
	case k.isPinned:
	case !k.limited:
		q.open[l] = struct{}{}
	default:
		for id := range i.Allowed {
			if q.limited[id] == nil {
				q.limited[id] = make(map[*lane]struct{}, 1)
			}
			q.limited[id][l] = struct{}{}
		}
		q.named += len(i.Allowed)
	}
	return l
}

// rank restores the order of awake after a lane's requests have changed. A sleeping
// lane sleeps on: it has no worker for a new first request either.
func (q *Queue) rank(l *lane) {
	if l.at != notRanked {
		heap.Fix(&q.awake, l.at)
	}
}

// drop forgets an empty lane.
func (q *Queue) drop(l *lane) {
	if l.at != notRanked {
		heap.Remove(&q.awake, l.at)
	}
	delete(q.lanes, l.key)
	delete(q.open, l)
	q.named -= len(l.key.allowed) / 8
	for b := []byte(l.key.allowed); len(b) > 0; b = b[8:] {
		id := kv.WorkerID(binary.BigEndian.Uint64(b))
		delete(q.limited[id], l)
		if len(q.limited[id]) == 0 {
			delete(q.limited, id)
		}
	}
}

// Released says that a worker may have become free. taints are the worker's. The
// lanes of the worker wake.
func (q *Queue) Released(w kv.Worker, taints []string) {
	if q.stats.Pending == 0 {
		return
	}
	q.wake(q.lanes[laneKey{pinned: w, isPinned: true}])
	for l := range q.open {
		if l.satisfiedBy(taints) {
			q.wake(l)
		}
	}
	for l := range q.limited[w.ID] {
		if l.satisfiedBy(taints) {
			q.wake(l)
		}
	}
}

// satisfiedBy reports whether taints contain all that the lane requires.
func (l *lane) satisfiedBy(taints []string) bool {
	for _, t := range l.waiting[0].RequiredTaints {
		if !slices.Contains(taints, t) {
			return false
		}
	}
	return true
}

// WakeAll wakes all lanes: the workers or the thresholds have changed, or time has
// passed and prefills run down.
func (q *Queue) WakeAll() {
	for _, l := range q.lanes {
		q.wake(l)
	}
}

func (q *Queue) wake(l *lane) {
	if l != nil && l.at == notRanked {
		heap.Push(&q.awake, l)
	}
}

// ranked is an element of a ranking. before is the order; position points to the element's
// index in the ranking.
type ranked[T any] interface {
	before(T) bool
	position() *int
}

// notRanked is the position of an element that is in no ranking.
const notRanked = -1

// ranking is a heap for container/heap whose elements know their position.
type ranking[T ranked[T]] []T

// Len implements heap.Interface.
func (h ranking[T]) Len() int { return len(h) }

// Less implements heap.Interface.
func (h ranking[T]) Less(i, j int) bool { return h[i].before(h[j]) }

// Swap implements heap.Interface.
func (h ranking[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	*h[i].position(), *h[j].position() = i, j
}

// Push implements heap.Interface.
func (h *ranking[T]) Push(x any) {
	*x.(T).position() = len(*h)
	*h = append(*h, x.(T))
}

// Pop implements heap.Interface.
func (h *ranking[T]) Pop() any {
	s := *h
	x := s[len(s)-1]
	clear(s[len(s)-1:])
	*h = s[:len(s)-1]
	*x.position() = notRanked
	return x
}
