package consolidator

import (
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/mirror"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
)

// RankStats are a rank's counters since it was made.
type RankStats struct {
	// Frames are the live messages received, Bytes their payload. BadFrames are messages,
	// live or replayed, that could not be read at all.
	Frames    uint64 `json:"frames"`
	Bytes     uint64 `json:"bytes"`
	BadFrames uint64 `json:"bad_frames" metric:"-"`
	// Batches, Events and Blocks were decoded. BadEvents are events that could not be
	// decoded. UnknownKeys are extra keys of an unknown kind. Their blocks have hashes
	// that no request asks for.
	Batches     uint64 `json:"batches"`
	Events      uint64 `json:"events" metric:"-"`
	Blocks      uint64 `json:"blocks"`
	BadEvents   uint64 `json:"bad_events" metric:"-"`
	UnknownKeys uint64 `json:"unknown_keys"`
	// Gaps are holes in the engine's sequence, lost last frames included. In the end a
	// gap is Repaired by replay or Lost.
	Gaps     uint64 `json:"gaps" metric:"-"`
	Repaired uint64 `json:"repaired" metric:"-"`
	Lost     uint64 `json:"lost" metric:"-"`
	// Replayed are batches applied from replay, Replays the requests, ReplayFailures the
	// requests without an answer in time.
	Replayed       uint64 `json:"replayed"`
	Replays        uint64 `json:"replays"`
	ReplayFailures uint64 `json:"replay_failures"`
	// Duplicates are frames that were applied before. Outdated are frames of an engine
	// that a replay has shown to be gone. Restarts are new incarnations of the engine.
	Duplicates uint64 `json:"duplicates"`
	Outdated   uint64 `json:"outdated"`
	Restarts   uint64 `json:"restarts" metric:"-"`
	// Overflows are live frames without room during a replay. They become a gap of their
	// own.
	Overflows uint64 `json:"overflows"`
	// Reannounced are stores of resident blocks that were not counted again.
	Reannounced uint64 `json:"reannounced"`
	// Parked are blocks that waited for their parent, Spliced those whose parent came.
	// ParkOverflow are parked blocks that were dropped to make room; Dropped has them too.
	// ParkedBytes is the size of the parked events now.
	Parked       uint64 `json:"parked"`
	Spliced      uint64 `json:"spliced"`
	ParkOverflow uint64 `json:"park_overflow"`
	ParkedBytes  uint64 `json:"parked_bytes" metric:",gauge"`
	// Listed are the engine's lists of cached blocks that were used, ListFailures the
	// failed attempts to get one. Unlisted is the number of listed blocks that no event has
	// announced yet.
	Listed       uint64 `json:"listed"`
	ListFailures uint64 `json:"list_failures"`
	Unlisted     uint64 `json:"unlisted" metric:",gauge"`
	// Checkpoints are files written, CheckpointFailures failed writes.
	// CheckpointsRejected are files that were damaged, of another version, or about
	// another engine or rank. Restored are the engine blocks of an accepted file.
	Checkpoints         uint64 `json:"checkpoints"`
	CheckpointFailures  uint64 `json:"checkpoint_failures"`
	CheckpointsRejected uint64 `json:"checkpoints_rejected"`
	Restored            uint64 `json:"restored"`
	// RecentBad are the last events that could not be decoded, at most 16, oldest first.
	RecentBad []BadEvent `json:"recent_bad,omitempty"`
	// Dropped are blocks that were not applied, by reason: unknown_parent,
	// unknown_block (removals), hash_conflict, block_size, token_count, placeholder,
	// unknown_medium, remote, unknown_locality, ownership, group, salt_conflict,
	// foreign_rank, table_full, unnamed_lora, names_full, too_many_copies, group_report
	// (a report of a KV group that may name blocks that the group lacks), unplaced (blocks of
	// a KV group that wait for the primary one, beyond the bound). A reason that did not
	// occur is absent. The caller owns the map.
	Dropped map[string]uint64 `json:"dropped"`
	// Known is the number of engine blocks in the rank's table now. Repairing is true
	// while a gap is open. Both are zero after Run.
	Known     uint64 `json:"known" metric:",gauge"`
	Repairing bool   `json:"repairing"`
}

// Add adds o to s. Counters and gauges are summed, Dropped by reason. Repairing is true
// if either is. Nothing of o is kept.
func (s *RankStats) Add(o RankStats) {
	s.RecentBad = lastBad(append(slices.Clip(s.RecentBad), o.RecentBad...))
	metric.Add(s, &o)
}

// maxRecentBad is the number of undecodable events that are remembered.
const maxRecentBad = 16

// BadEvent is an engine event that could not be decoded.
type BadEvent struct {
	// Reason is the error, with the event's number in its batch. Prefix is the event's
	// first bytes in hexadecimal.
	Reason string `json:"reason"`
	Prefix string `json:"prefix"`
}

// lastBad returns the last maxRecentBad of events.
func lastBad(events []BadEvent) []BadEvent { return events[max(0, len(events)-maxRecentBad):] }

// counters count for RankStats. The rank's goroutine writes them.
type counters struct {
	frames, bytes, badFrames, badEvents atomic.Uint64
	sequence                            sequence.Counters
	mirror                              mirror.Counters
	checkpoints                         checkpoint.Counters
	checkpointsRejected, restored       atomic.Uint64
	listed, listFailures                atomic.Uint64

	mu        sync.Mutex
	recentBad []BadEvent
}

// snapshot returns the counters of the rank and of its parts.
func (c *counters) snapshot() RankStats {
	seq, m := &c.sequence, &c.mirror
	s := RankStats{
		Frames: c.frames.Load(), Bytes: c.bytes.Load(), BadFrames: c.badFrames.Load(), BadEvents: c.badEvents.Load(),
		Batches: m.Batches.Load(), Events: m.Events.Load(), Blocks: m.Blocks.Load(), UnknownKeys: m.UnknownKeys.Load(),
		Gaps: seq.Gaps.Load(), Repaired: seq.Repaired.Load(), Lost: seq.Lost.Load(),
		Replayed: seq.Replayed.Load(), Replays: seq.Replays.Load(), ReplayFailures: seq.ReplayFailures.Load(),
		Duplicates: seq.Duplicates.Load(), Outdated: seq.Outdated.Load(), Restarts: seq.Restarts.Load(),
		Overflows: seq.Overflows.Load(), Repairing: seq.Repairing.Load(),
		Reannounced: m.Reannounced.Load(), Parked: m.Parked.Load(), Spliced: m.Spliced.Load(),
		ParkOverflow: m.ParkOverflow.Load(), ParkedBytes: m.ParkedBytes.Load(), Unlisted: m.Unlisted.Load(),
		Listed: c.listed.Load(), ListFailures: c.listFailures.Load(),
		Checkpoints: c.checkpoints.Written.Load(), CheckpointFailures: c.checkpoints.Failed.Load(),
		CheckpointsRejected: c.checkpointsRejected.Load(), Restored: c.restored.Load(),
		Known: m.Known.Load(), Dropped: m.Dropped(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.RecentBad = slices.Clone(c.recentBad)
	return s
}

// ended zeroes the gauges.
func (c *counters) ended() {
	c.mirror.Ended()
	c.sequence.Repairing.Store(false)
}

// bad counts events that could not be decoded, and remembers the last maxRecentBad of them.
func (c *counters) bad(errs []error) {
	c.badEvents.Add(uint64(len(errs)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range errs[max(0, len(errs)-maxRecentBad):] {
		b := BadEvent{Reason: err.Error()}
		if bad := (*engineevent.BadEvent)(nil); errors.As(err, &bad) {
			b.Prefix = hex.EncodeToString(bad.Prefix)
		}
		c.recentBad = lastBad(append(c.recentBad, b))
	}
}
