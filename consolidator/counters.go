package consolidator

import (
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
)

// maxRecentBad is how many undecodable events are remembered.
const maxRecentBad = 16

// BadEvent is an engine event that could not be decoded.
type BadEvent struct {
	// Reason is why, with the event's number in its batch; Prefix is how the event
	// begins, in hexadecimal.
	Reason string `json:"reason"`
	Prefix string `json:"prefix"`
}

// lastBad is the last maxRecentBad of events.
func lastBad(events []BadEvent) []BadEvent { return events[max(0, len(events)-maxRecentBad):] }

// counters are RankStats while they count; written by the rank's goroutine.
type counters struct {
	frames, bytes, badFrames        atomic.Uint64
	batches, events, blocks         atomic.Uint64
	badEvents, unknownKeys          atomic.Uint64
	sequence                        sequence.Counters
	reannounced, known              atomic.Uint64
	parked, spliced, parkOverflow   atomic.Uint64
	parkedBytes, unlisted           atomic.Uint64
	listed, listFailures            atomic.Uint64
	checkpoints, checkpointFailures atomic.Uint64
	checkpointsRejected, restored   atomic.Uint64
	dropped                         [numDropReasons]atomic.Uint64

	mu        sync.Mutex
	recentBad []BadEvent
}

func (c *counters) snapshot() RankStats {
	s := RankStats{
		Frames: c.frames.Load(), Bytes: c.bytes.Load(), BadFrames: c.badFrames.Load(),
		Batches: c.batches.Load(), Events: c.events.Load(), Blocks: c.blocks.Load(), BadEvents: c.badEvents.Load(),
		UnknownKeys: c.unknownKeys.Load(),
		Gaps:        c.sequence.Gaps.Load(), Repaired: c.sequence.Repaired.Load(), Lost: c.sequence.Lost.Load(),
		Replayed: c.sequence.Replayed.Load(), Replays: c.sequence.Replays.Load(), ReplayFailures: c.sequence.ReplayFailures.Load(),
		Duplicates: c.sequence.Duplicates.Load(), Outdated: c.sequence.Outdated.Load(), Restarts: c.sequence.Restarts.Load(),
		Overflows: c.sequence.Overflows.Load(), Reannounced: c.reannounced.Load(),
		Parked: c.parked.Load(), Spliced: c.spliced.Load(), ParkOverflow: c.parkOverflow.Load(),
		ParkedBytes: c.parkedBytes.Load(), Unlisted: c.unlisted.Load(),
		Listed: c.listed.Load(), ListFailures: c.listFailures.Load(),
		Checkpoints: c.checkpoints.Load(), CheckpointFailures: c.checkpointFailures.Load(),
		CheckpointsRejected: c.checkpointsRejected.Load(), Restored: c.restored.Load(),
		Known: c.known.Load(), Repairing: c.sequence.Repairing.Load(), Dropped: make(map[string]uint64),
	}
	for r := range numDropReasons {
		if n := c.dropped[r].Load(); n > 0 {
			s.Dropped[r.String()] = n
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.RecentBad = slices.Clone(c.recentBad)
	return s
}

// ended zeroes what is about the present only.
func (c *counters) ended() {
	c.known.Store(0)
	c.parkedBytes.Store(0)
	c.unlisted.Store(0)
	c.sequence.Repairing.Store(false)
}

// bad counts and remembers events that could not be decoded.
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
