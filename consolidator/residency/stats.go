package residency

import "github.com/blockyard-ai/blockyard/internal/metric"

// Stats are the counters of a stream since NewStream.
type Stats struct {
	// Events counts published events, and Blocks the blocks in them.
	Events uint64 `json:"events" metric:"-"`
	Blocks uint64 `json:"blocks"`
	// UnknownRemoves counts removals of blocks that were not resident. They change nothing.
	UnknownRemoves uint64 `json:"unknown_removes"`
	// RefOverflows counts references beyond the limits of Refs. They are kept, outside the
	// table.
	RefOverflows uint64 `json:"ref_overflows"`
	// InlineFlushes counts flushes that happened because too many changes were pending.
	InlineFlushes uint64 `json:"inline_flushes"`
	// TableFull counts blocks that were not stored because the table was full (64 Mi
	// blocks). SinksRefused counts sinks and followers beyond MaxSinks.
	TableFull    uint64 `json:"table_full"`
	SinksRefused uint64 `json:"sinks_refused"`
	// FollowersCut counts followers that fell too far behind. Such a follower loses its
	// queue and compares all its blocks with the stream's.
	FollowersCut uint64 `json:"followers_cut"`
}

// Add adds the counters of o to s.
func (s *Stats) Add(o Stats) { metric.Add(s, &o) }
