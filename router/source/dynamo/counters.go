package dynamo

import (
	"github.com/blockyard-ai/blockyard/router/source"
)

// sourceName is the name of a Source in cards and metrics.
const sourceName = "dynamo"

// Counters count the events of an endpoint's workers.
type Counters struct {
	// Applied counts events that changed a table, Stale events that came before.
	Applied, Stale uint64
	// Orphans counts blocks with an unknown parent, Refused blocks without room. Renamed
	// counts names that an engine gave to another block, UnknownRemovals removals of
	// unknown blocks.
	Orphans, Refused, Renamed, UnknownRemovals uint64
	// Gaps counts holes in the event ids. Queries counts questions to recovery targets,
	// QueryFailures the ones without a usable answer, Dumps answers with everything.
	// Recovered counts recoveries that succeeded, GivenUp the ones that did not.
	Gaps, Queries, QueryFailures, Recovered, GivenUp, Dumps uint64
	// Overflowed counts events without room in the queue of a recovering rank. They are
	// asked for afterwards.
	Overflowed uint64
	// Foreign counts messages with an event of another rank than their publisher's.
	// Unclaimed counts messages of publishers without a record, Undecodable messages of
	// unknown form, Skipped events of other owners or residency domains.
	Foreign, Unclaimed, Undecodable, Skipped uint64
	// Ambiguous counts ranks that were found to have several sources, BadRecords
	// unreadable discovery records.
	Ambiguous, BadRecords uint64
	// Loads counts reports of used blocks, UnknownLoads reports of unknown ranks.
	Loads, UnknownLoads uint64
	// Dropped counts messages that this side was too slow for.
	Dropped uint64
	// Ranks is the number of ranks now, ExactRanks of complete ranks.
	Ranks, ExactRanks int
}

var _ source.Measured = (*Source)(nil)

// Metrics implements source.Measured.
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
