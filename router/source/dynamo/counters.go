package dynamo

import (
	"github.com/blockyard-ai/blockyard/router/source"
)

// sourceName is what the router calls the workers and the counters of a Transport.
const sourceName = "dynamo"

// Counters count what happened to the events of an endpoint's workers.
type Counters struct {
	// Applied counts events that became part of a table, Stale those that it had
	// already.
	Applied, Stale uint64
	// Orphans counts blocks left out because their parent is not known, Refused
	// those left out for want of room, Renamed names that an engine gave to
	// another block, UnknownRemovals removals of blocks that were not there.
	Orphans, Refused, Renamed, UnknownRemovals uint64
	// Gaps counts holes in the event ids, Queries questions to recovery targets,
	// QueryFailures those without a usable answer, Recovered recoveries that
	// succeeded and GivenUp those that did not, Dumps answers with everything.
	Gaps, Queries, QueryFailures, Recovered, GivenUp, Dumps uint64
	// Overflowed counts events that did not fit the queue of a recovering rank;
	// they are asked for afterwards.
	Overflowed uint64
	// Foreign counts messages dropped because an event is not of the rank that
	// their publisher speaks for, Unclaimed those of publishers that no record
	// names, Undecodable those of unknown form. Skipped counts events of owners
	// or residency domains that are not modelled.
	Foreign, Unclaimed, Undecodable, Skipped uint64
	// Ambiguous counts how often a rank was found to have several sources,
	// BadRecords discovery records that could not be read.
	Ambiguous, BadRecords uint64
	// Loads counts reports of used blocks, UnknownLoads those of ranks that are not
	// known.
	Loads, UnknownLoads uint64
	// Dropped counts messages lost because this side was too slow.
	Dropped uint64
	// Ranks is how many ranks are known now, ExactRanks how many of them are
	// complete.
	Ranks, ExactRanks int
}

var _ source.Measured = (*Source)(nil)

// SourceStats is the router.SourceCounter's: the counters, for its metrics.
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
