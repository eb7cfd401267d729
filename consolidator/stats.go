package consolidator

import "sync/atomic"

// RankStats are a rank's counters since it was made.
type RankStats struct {
	// Frames are the live messages received, Bytes their payload; BadFrames are
	// messages, live or replayed, that could not be read at all.
	Frames, Bytes, BadFrames uint64
	// Batches, Events and Blocks are what was decoded and handed to conversion;
	// BadEvents are events of a batch that could not be decoded.
	Batches, Events, Blocks, BadEvents uint64
	// Gaps are holes in the engine's sequence, lost last frames included. Each is
	// in the end repaired by replay or lost.
	Gaps, Repaired, Lost uint64
	// Replayed are the batches that were applied from replay, Replays the
	// requests for it, ReplayFailures those that were not answered in time.
	Replayed, Replays, ReplayFailures uint64
	// Duplicates are frames that had been applied already, Restarts the times
	// that the engine began to count anew.
	Duplicates, Restarts uint64
	// Overflows are live frames thrown away during a replay that took too long;
	// they become a gap of their own.
	Overflows uint64
	// Reannounced are stores of resident blocks that were not counted again.
	Reannounced uint64
	// Dropped are blocks that were not applied, by reason: unknown_parent,
	// unknown_block (removals), hash_conflict, block_size, token_count, placeholder,
	// unknown_medium, remote, unknown_locality, ownership, group, salt_conflict,
	// foreign_rank, table_full. A reason that did not occur is absent. The map is
	// the caller's.
	Dropped map[string]uint64
	// Known is the number of engine blocks in the rank's table now.
	Known uint64
	// Repairing: a gap is being repaired right now.
	Repairing bool
}

// counters are RankStats while they count; written by the rank's goroutine.
type counters struct {
	frames, bytes, badFrames          atomic.Uint64
	batches, events, blocks           atomic.Uint64
	badEvents                         atomic.Uint64
	gaps, repaired, lost              atomic.Uint64
	replayed, replays, replayFailures atomic.Uint64
	duplicates, restarts, overflows   atomic.Uint64
	reannounced, known                atomic.Uint64
	repairing                         atomic.Bool
	dropped                           [numDropReasons]atomic.Uint64
}

func (c *counters) snapshot() RankStats {
	s := RankStats{
		Frames: c.frames.Load(), Bytes: c.bytes.Load(), BadFrames: c.badFrames.Load(),
		Batches: c.batches.Load(), Events: c.events.Load(), Blocks: c.blocks.Load(), BadEvents: c.badEvents.Load(),
		Gaps: c.gaps.Load(), Repaired: c.repaired.Load(), Lost: c.lost.Load(),
		Replayed: c.replayed.Load(), Replays: c.replays.Load(), ReplayFailures: c.replayFailures.Load(),
		Duplicates: c.duplicates.Load(), Restarts: c.restarts.Load(), Overflows: c.overflows.Load(),
		Reannounced: c.reannounced.Load(), Known: c.known.Load(), Repairing: c.repairing.Load(),
		Dropped: make(map[string]uint64),
	}
	for r := range numDropReasons {
		if n := c.dropped[r].Load(); n > 0 {
			s.Dropped[r.String()] = n
		}
	}
	return s
}
