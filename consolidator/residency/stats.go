package residency

import "github.com/blockyard-ai/blockyard/internal/metric"

// Stats are a stream's counters since it was made.
type Stats struct {
	// Events and Blocks were handed to the sinks.
	Events uint64 `json:"events" metric:"-"`
	Blocks uint64 `json:"blocks"`
	// UnknownRemoves are removals of blocks that were not resident. They made no event.
	UnknownRemoves uint64 `json:"unknown_removes"`
	// RefOverflows are references beyond the packed counts of a block. They are counted
	// beside the table.
	RefOverflows uint64 `json:"ref_overflows"`
	// InlineFlushes are flushes because too many changes were pending.
	InlineFlushes uint64 `json:"inline_flushes"`
	// TableFull are stores into a full table (64 Mi blocks). SinksRefused are sinks beyond
	// MaxSinks.
	TableFull    uint64 `json:"table_full"`
	SinksRefused uint64 `json:"sinks_refused"`
	// FollowersCut counts followers that fell too far behind. Such a follower loses its
	// queue and compares all its blocks with the stream's.
	FollowersCut uint64 `json:"followers_cut"`
}

// Add adds the counters of o to s.
func (s *Stats) Add(o Stats) { metric.Add(s, &o) }
