package sequence

import "sync/atomic"

// Counters count the decisions of a Sequencer. They may be read by any goroutine.
type Counters struct {
	// Gaps counts holes in the sequence. Each gap ends as Repaired or Lost.
	Gaps, Repaired, Lost atomic.Uint64
	// Replayed counts batches applied from replays, Replays the requests for a replay, and
	// ReplayFailures the requests without an answer in time.
	Replayed, Replays, ReplayFailures atomic.Uint64
	// Duplicates counts frames whose batch was applied before. Outdated counts frames of an
	// earlier incarnation. Restarts counts new incarnations.
	Duplicates, Outdated, Restarts atomic.Uint64
	// Overflows counts live frames that were dropped during a replay, for lack of room.
	Overflows atomic.Uint64
	// Repairing is true while a gap is open.
	Repairing atomic.Bool
}
