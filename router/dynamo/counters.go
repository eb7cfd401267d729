package dynamo

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
	// Ranks is how many ranks are known now, ExactRanks how many of them are
	// complete.
	Ranks, ExactRanks int
}
