package residency

import "github.com/blockyard-ai/blockyard/internal/metric"

// Stats are a stream's counters since it was made.
type Stats struct {
	// Events and Blocks are what was handed to the sink.
	Events uint64 `json:"events" metric:"-"`
	Blocks uint64 `json:"blocks"`
	// UnknownRemoves are removals of blocks that were not resident; nothing was
	// emitted for them.
	UnknownRemoves uint64 `json:"unknown_removes"`
	// RefOverflows are references beyond what the table holds for a block; they are
	// counted beside it.
	RefOverflows uint64 `json:"ref_overflows"`
	// InlineFlushes are flushes made because too much was pending.
	InlineFlushes uint64 `json:"inline_flushes"`
	// TableFull are stores that could not be counted because the table holds as many
	// blocks as it can (64 Mi), SinksRefused the sinks that were one too many.
	TableFull    uint64 `json:"table_full"`
	SinksRefused uint64 `json:"sinks_refused"`
	// FollowersCut are the times that a follower fell too far behind, lost its queue and
	// had to compare everything it holds with what the stream holds.
	FollowersCut uint64 `json:"followers_cut"`
}

// Add adds the counters of o to s.
func (s *Stats) Add(o Stats) { metric.Add(s, &o) }
