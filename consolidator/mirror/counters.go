package mirror

import "sync/atomic"

// Counters count the events and blocks that a Cache applied or dropped. They may be read by any
// goroutine.
type Counters struct {
	// Batches, Events and Blocks count the engine's. UnknownKeys counts extra keys of
	// blocks that have an unknown kind.
	Batches, Events, Blocks, UnknownKeys atomic.Uint64
	// Reannounced counts blocks that an event repeated and that got no further copy.
	Reannounced atomic.Uint64
	// Parked counts blocks that were parked for an unknown parent, Spliced those stored when
	// the parent came, and ParkOverflow those dropped to make room for others.
	Parked, Spliced, ParkOverflow atomic.Uint64
	// Known, ParkedBytes and Unlisted are gauges: the known engine blocks, the bytes of
	// parked events, and the listed blocks that no event has announced.
	Known, ParkedBytes, Unlisted atomic.Uint64

	dropped [numDropReasons]atomic.Uint64
}

// Dropped returns the blocks that were not applied, by reason. Reasons that did not
// occur are absent.
func (c *Counters) Dropped() map[string]uint64 {
	dropped := make(map[string]uint64)
	for r := range numDropReasons {
		if n := c.dropped[r].Load(); n > 0 {
			dropped[dropReasons[r].name] = n
		}
	}
	return dropped
}

// Ended sets the gauges to 0.
func (c *Counters) Ended() {
	c.Known.Store(0)
	c.ParkedBytes.Store(0)
	c.Unlisted.Store(0)
}
