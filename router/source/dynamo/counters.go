package dynamo

import (
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// sourceName is the name of a Source in cards and metrics.
const sourceName = "dynamo"

// Counters count the events of an endpoint's workers.
type Counters struct {
	// Applied counts events that were applied to a table. Stale counts events that were
	// already applied.
	Applied, Stale uint64
	// Orphans counts blocks with an unknown parent. Refused counts blocks without room.
	// Renamed counts names that an engine gave to another block. UnknownRemovals counts
	// removals of unknown blocks.
	Orphans, Refused, Renamed, UnknownRemovals uint64
	// Gaps counts gaps in the event ids. Queries counts queries to recovery targets.
	// QueryFailures counts queries without a usable answer. Dumps counts whole dumps.
	// Recovered and GivenUp count recoveries that succeeded and failed.
	Gaps, Queries, QueryFailures, Recovered, GivenUp, Dumps uint64
	// Overflowed counts events without room in the queue of a recovering rank. A later
	// query brings them.
	Overflowed uint64
	// Foreign counts messages with an event of another rank than their publisher's.
	// Unclaimed counts messages of publishers without a record. Undecodable counts
	// messages of unknown form. Skipped counts events of other owners or residency domains.
	Foreign, Unclaimed, Undecodable, Skipped uint64
	// Ambiguous counts how often a rank had several sources. BadRecords counts unreadable
	// discovery records.
	Ambiguous, BadRecords uint64
	// Loads counts reports of used blocks. UnknownLoads counts reports of unknown ranks.
	Loads, UnknownLoads uint64
	// Dropped counts messages lost because the Source was too slow.
	Dropped uint64
	// Ranks is the number of ranks now. ExactRanks is the number of exact ranks.
	Ranks, ExactRanks int
}

// Counters returns the counters of all ranks and messages, and how many ranks there are now.
// ExactRanks are those whose blocks are all known.
func (t *Source) Counters() Counters {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counters
	c.Unclaimed, c.Skipped = t.unclaimed.dropped, t.decoder.Skipped
	c.Undecodable += t.decoder.Bad
	c.Dropped = t.dropped()
	c.Ranks = len(t.ranks)
	for _, r := range t.ranks {
		if r.health == kvevent.HealthExact {
			c.ExactRanks++
		}
	}
	return c
}

var _ source.Measured = (*Source)(nil)

// Metrics returns the counters and gauges under the names that the router's metrics have.
func (t *Source) Metrics() []source.Metrics {
	c := t.Counters()
	return []source.Metrics{{
		Name: sourceName,
		Counters: map[string]uint64{
			"applied": c.Applied, "stale": c.Stale, "orphans": c.Orphans, "refused": c.Refused, "renamed": c.Renamed,
			"unknown_removals": c.UnknownRemovals, "gaps": c.Gaps, "queries": c.Queries, "query_failures": c.QueryFailures,
			"recovered": c.Recovered, "given_up": c.GivenUp, "dumps": c.Dumps, "overflowed": c.Overflowed, "foreign": c.Foreign,
			"unclaimed": c.Unclaimed, "undecodable": c.Undecodable, "skipped": c.Skipped, "ambiguous": c.Ambiguous,
			"bad_records": c.BadRecords, "loads": c.Loads, "unknown_loads": c.UnknownLoads, "dropped": c.Dropped,
		},
		Gauges: map[string]uint64{"ranks": uint64(c.Ranks), "exact_ranks": uint64(c.ExactRanks)},
	}}
}
