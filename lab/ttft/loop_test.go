package ttft

import (
	"container/heap"
	"time"
)

// loop is the clock of a run and what is to happen.
type loop struct {
	now   time.Duration
	queue eventQueue
	made  int
}

type event struct {
	at   time.Duration
	made int // of equal times the one made first comes first
	do   func()
}

// epoch is when runs begin.
var epoch = time.Unix(1_700_000_000, 0)

// clock returns the time now.
func (l *loop) clock() time.Time { return epoch.Add(l.now) }

// at has do happen at a time that is not past.
func (l *loop) at(t time.Duration, do func()) {
	l.made++
	heap.Push(&l.queue, event{max(t, l.now), l.made, do})
}

// every has do happen again and again, until it is the only thing left.
func (l *loop) every(d time.Duration, do func()) {
	l.at(l.now+d, func() {
		do()
		if len(l.queue) > 0 {
			l.every(d, do)
		}
	})
}

// run ends when nothing is left to happen.
func (l *loop) run() {
	for len(l.queue) > 0 {
		e := heap.Pop(&l.queue).(event)
		l.now = e.at
		e.do()
	}
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].made < q[j].made
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
