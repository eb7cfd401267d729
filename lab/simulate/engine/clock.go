package engine

import (
	"container/heap"
	"time"
)

// Clock is virtual time with the events to come. The zero value starts at 0.
type Clock struct {
	// Then is called after each event; nil does nothing.
	Then func()

	now    time.Duration
	events events
	number uint64
}

// event is a function and its time. number orders events of equal times.
type event struct {
	at     time.Duration
	number uint64
	do     func()
}

// Epoch is the wall time at which every Clock starts.
var Epoch = time.Unix(1_700_000_000, 0)

// Now returns the time since the start.
func (c *Clock) Now() time.Duration { return c.now }

// Wall returns the time as a time.Time, for parts that take a clock.
func (c *Clock) Wall() time.Time { return Epoch.Add(c.now) }

// At calls do at time t, or now if t has passed. Of equal times the first call of At comes first.
func (c *Clock) At(t time.Duration, do func()) {
	c.number++
	heap.Push(&c.events, event{max(t, c.now), c.number, do})
}

// After calls do after d.
func (c *Clock) After(d time.Duration, do func()) { c.At(c.now+d, do) }

// Every calls do every d, until do returns false.
func (c *Clock) Every(d time.Duration, do func() bool) {
	c.After(d, func() {
		if do() {
			c.Every(d, do)
		}
	})
}

// Run runs events until none is left or the next one is after until. It returns the number of
// events.
func (c *Clock) Run(until time.Duration) (n int) {
	for len(c.events) > 0 && c.events[0].at <= until {
		e := heap.Pop(&c.events).(event)
		c.now = e.at
		e.do()
		if c.Then != nil {
			c.Then()
		}
		n++
	}
	return n
}

// events is a heap for container/heap.
type events []event

// Len implements heap.Interface.
func (h events) Len() int { return len(h) }

// Less implements heap.Interface.
func (h events) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].number < h[j].number
}

// Swap implements heap.Interface.
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *events) Push(x any) { *h = append(*h, x.(event)) }

// Pop implements heap.Interface.
func (h *events) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = event{}
	*h = (*h)[:last]
	return e
}
