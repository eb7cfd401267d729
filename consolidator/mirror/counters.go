package mirror

import "sync/atomic"

// Counters count what a Cache applied and dropped. They may be read by any goroutine.
type Counters struct {
	// Batches, Events and Blocks are what came. UnknownKeys are extra keys of a kind
	// that is not known.
	Batches, Events, Blocks, UnknownKeys atomic.Uint64
	// Reannounced are stores of resident blocks that were not counted again.
	Reannounced atomic.Uint64
	// Parked are blocks that waited for their parent, Spliced those whose parent came,
	// and ParkOverflow those that had to go for others.
	Parked, Spliced, ParkOverflow atomic.Uint64
	// Known, ParkedBytes and Unlisted are about the present: engine blocks in the table,
	// what is parked, and listed blocks of which nothing else is known.
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

// Ended zeroes what is about the present only.
func (c *Counters) Ended() {
	c.Known.Store(0)
	c.ParkedBytes.Store(0)
	c.Unlisted.Store(0)
}
