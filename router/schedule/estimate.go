package schedule

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Estimator tells how long workers would take to the first token of a request.
// It is called once per decision with the scheduler's lock held: it must be
// quick, must not block and must not call the scheduler.
type Estimator interface {
	// FirstTokens sets ms[k] to the expected time in milliseconds of candidate k,
	// finite and not negative; there are in.Len() of them. With ok false a measure
	// is missing, ms means nothing, and why says which one, such as "no prefill rate
	// of worker 7/0 yet"; the whole decision then falls back to weights. Both are the
	// scheduler's and only valid during the call.
	//
	// While an Estimator is asked, in.Loads counts of each request that was booked
	// what LocalTokens leaves of its prompt.
	FirstTokens(in *Selection, ms []float64) (why string, ok bool)
}

// LocalTokens is how many tokens of a prompt a worker need not compute: those of
// its hits in every tier, but for the external one. How long blocks from there take
// nobody measures, so that they count like tokens to be computed.
func LocalTokens(h index.Hits, blockSize int) int {
	return (int(h[kv.TierDevice]) + int(h[kv.TierHost]) + int(h[kv.TierDisk])) * blockSize
}

// bookedCached is how many tokens of r's prompt are booked as cached. By cost a
// block in a lower tier is waited for and not computed, so that the queue behind r is
// what nobody has; by weights it counts for what its tier is worth.
func (s *Scheduler) bookedCached(r *Request, chosen *Result) int {
	if !s.config.Cost || s.options.Estimator == nil || len(r.Hits) == 0 {
		return chosen.CachedTokens
	}
	return LocalTokens(chosen.Hits, r.BlockSize)
}
