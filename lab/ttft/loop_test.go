package ttft

import (
	"slices"
	"time"
)

// loop is the clock of a run and the events to come, in the order of time.
type loop struct {
	now   time.Duration
	queue []event
}

type event struct {
	at time.Duration
	do func()
}

// epoch is when runs begin.
var epoch = time.Unix(1_700_000_000, 0)

// clock returns the time now.
func (l *loop) clock() time.Time { return epoch.Add(l.now) }

// at calls do at t, or now if t is past. Of equal times the first one that was given comes
// first.
func (l *loop) at(t time.Duration, do func()) {
	t = max(t, l.now)
	i, _ := slices.BinarySearchFunc(l.queue, t, func(e event, t time.Duration) int {
		if e.at <= t {
			return -1
		}
		return 1
	})
	l.queue = slices.Insert(l.queue, i, event{t, do})
}

// every calls do again and again, until it is the only event left.
func (l *loop) every(d time.Duration, do func()) {
	l.at(l.now+d, func() {
		do()
		if len(l.queue) > 0 {
			l.every(d, do)
		}
	})
}

// run ends when no event is left.
func (l *loop) run() {
	for len(l.queue) > 0 {
		e := l.queue[0]
		l.queue = l.queue[1:]
		l.now = e.at
		e.do()
	}
}
