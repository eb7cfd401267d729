package consolidator

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/metric"
)

// RankStats are a rank's counters since it was made.
type RankStats struct {
	// Frames are the live messages received, Bytes their payload; BadFrames are
	// messages, live or replayed, that could not be read at all.
	Frames    uint64 `json:"frames"`
	Bytes     uint64 `json:"bytes"`
	BadFrames uint64 `json:"bad_frames" metric:"-"`
	// Batches, Events and Blocks are what was decoded and handed to conversion;
	// BadEvents are events of a batch that could not be decoded. UnknownKeys are extra
	// keys of a kind that is not known; their blocks have names that nobody asks for.
	Batches     uint64 `json:"batches"`
	Events      uint64 `json:"events" metric:"-"`
	Blocks      uint64 `json:"blocks"`
	BadEvents   uint64 `json:"bad_events" metric:"-"`
	UnknownKeys uint64 `json:"unknown_keys"`
	// Gaps are holes in the engine's sequence, lost last frames included. Each is
	// in the end Repaired by replay or Lost.
	Gaps     uint64 `json:"gaps" metric:"-"`
	Repaired uint64 `json:"repaired" metric:"-"`
	Lost     uint64 `json:"lost" metric:"-"`
	// Replayed are the batches that were applied from replay, Replays the
	// requests for it, ReplayFailures those that were not answered in time.
	Replayed       uint64 `json:"replayed"`
	Replays        uint64 `json:"replays"`
	ReplayFailures uint64 `json:"replay_failures"`
	// Duplicates are frames that had been applied already, Outdated those of an
	// engine that a replay has shown to be gone, and Restarts the times that the
	// engine began to count anew.
	Duplicates uint64 `json:"duplicates"`
	Outdated   uint64 `json:"outdated"`
	Restarts   uint64 `json:"restarts" metric:"-"`
	// Overflows are live frames thrown away during a replay that took too long;
	// they become a gap of their own.
	Overflows uint64 `json:"overflows"`
	// Reannounced are stores of resident blocks that were not counted again.
	Reannounced uint64 `json:"reannounced"`
	// Parked are blocks that had to wait for their parent, Spliced those of them
	// whose parent came, and ParkOverflow those that had to go for others; they are
	// also in Dropped. ParkedBytes is what waits now.
	Parked       uint64 `json:"parked"`
	Spliced      uint64 `json:"spliced"`
	ParkOverflow uint64 `json:"park_overflow"`
	ParkedBytes  uint64 `json:"parked_bytes" metric:",gauge"`
	// Listed are the lists of cached blocks that the engine gave, ListFailures the
	// attempts to get one that failed. Unlisted is how many listed blocks are still
	// unknown now.
	Listed       uint64 `json:"listed"`
	ListFailures uint64 `json:"list_failures"`
	Unlisted     uint64 `json:"unlisted" metric:",gauge"`
	// Checkpoints are the files written, CheckpointFailures those that could not be.
	// CheckpointsRejected are files that were damaged, of another version or about
	// another engine or rank, and Restored the engine blocks taken from a good one.
	Checkpoints         uint64 `json:"checkpoints"`
	CheckpointFailures  uint64 `json:"checkpoint_failures"`
	CheckpointsRejected uint64 `json:"checkpoints_rejected"`
	Restored            uint64 `json:"restored"`
	// RecentBad are the last events that could not be decoded, at most 16, the
	// oldest first.
	RecentBad []BadEvent `json:"recent_bad,omitempty"`
	// Dropped are blocks that were not applied, by reason: unknown_parent,
	// unknown_block (removals), hash_conflict, block_size, token_count, placeholder,
	// unknown_medium, remote, unknown_locality, ownership, group, salt_conflict,
	// foreign_rank, table_full, unnamed_lora, names_full, too_many_copies. A reason that
	// did not occur is absent. The map is the caller's.
	Dropped map[string]uint64 `json:"dropped"`
	// Known is the number of engine blocks in the rank's table now, and Repairing
	// says that a gap is being repaired right now. Both are zero when Run has
	// returned.
	Known     uint64 `json:"known" metric:",gauge"`
	Repairing bool   `json:"repairing"`
}

// Add adds o to s: counters and gauges are summed, Dropped by reason, and
// Repairing holds if it does for either. Nothing of o is kept.
func (s *RankStats) Add(o RankStats) {
	s.RecentBad = lastBad(append(slices.Clip(s.RecentBad), o.RecentBad...))
	metric.Add(s, &o)
}
