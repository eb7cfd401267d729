package sequence

import "sync/atomic"

// Counters count what a Sequencer decided. They may be read by any goroutine.
type Counters struct {
	// Gaps are holes in the sequence. Each is in the end Repaired or Lost.
	Gaps, Repaired, Lost atomic.Uint64
	// Replayed are batches applied from replay, Replays the requests, and
	// ReplayFailures the requests without an answer in time.
	Replayed, Replays, ReplayFailures atomic.Uint64
	// Duplicates are frames applied before, Outdated those of an engine that a
	// replay has shown to be gone. Restarts count new incarnations.
	Duplicates, Outdated, Restarts atomic.Uint64
	// Overflows are live frames that found no room during a replay.
	Overflows atomic.Uint64
	// Repairing is true while a gap is open.
	Repairing atomic.Bool
}
