package engine

import "time"

// Clock is virtual time with the events to come. The zero value starts at 0.
type Clock struct {
	// Then is called after each event, and ends Run when it returns false. Nil does nothing.
	Then func() bool

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
	c.events.push(event{max(t, c.now), c.number, do})
}

// After calls do after d.
func (c *Clock) After(d time.Duration, do func()) { c.At(c.now+d, do) }

// Every calls do every d.
func (c *Clock) Every(d time.Duration, do func()) {
	c.After(d, func() {
		do()
		c.Every(d, do)
	})
}

// Run runs events until none is left, the next one is after until, or Then returns false. It returns the
// number of events.
func (c *Clock) Run(until time.Duration) (n int) {
	for len(c.events) > 0 && c.events[0].at <= until {
		e := c.events.pop()
		c.now = e.at
		e.do()
		n++
		if c.Then != nil && !c.Then() {
			break
		}
	}
	return n
}

// events is a binary heap. container/heap would allocate each event.
type events []event

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.number < o.number
}

func (h *events) push(e event) {
	*h = append(*h, e)
	all := *h
	at := len(all) - 1
	for at > 0 {
		parent := (at - 1) / 2
		if !e.before(&all[parent]) {
			break
		}
		all[at] = all[parent]
		at = parent
	}
	all[at] = e
}

func (h *events) pop() event {
	all := *h
	first, last := all[0], all[len(all)-1]
	all[len(all)-1] = event{}
	all = all[:len(all)-1]
	*h = all
	if len(all) == 0 {
		return first
	}
	at := 0
	for {
		child := 2*at + 1
		if child >= len(all) {
			break
		}
		if child+1 < len(all) && all[child+1].before(&all[child]) {
			child++
		}
		if !all[child].before(&last) {
			break
		}
		all[at] = all[child]
		at = child
	}
	all[at] = last
	return first
}
