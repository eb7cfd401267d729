package schedule

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Estimator tells how long a worker would take to the first token of a request.
// It is called once per candidate with the scheduler's lock held: it must be
// quick, must not block and must not call the scheduler.
type Estimator interface {
	// FirstToken is the expected time in milliseconds, finite and not negative.
	// With ok false a measure is missing and why says which, such as
	// "no prefill rate of worker 7/0 yet"; the whole decision then falls back to
	// weights. in is the scheduler's and only valid during the call.
	FirstToken(in *EstimateInput) (ms float64, ok bool, why string)
}

// EstimateInput is what is known of a request on one worker.
type EstimateInput struct {
	// Member is the worker's place in the list of members, Worker its name, and
	// Pool the pool whose blocks count for it, 0 for none.
	Member int
	Worker kv.Worker
	Pool   uint64
	// Hits are the prompt's blocks that the worker has, by tier. They do not
	// overlap: each tier extends the one above.
	Hits index.Hits
	// SharedBlocks are blocks of the prompt in the shared cache beyond the
	// worker's device prefix. They may lie under Hits of lower tiers too.
	SharedBlocks int
	// Tokens is the length of the prompt, BlockSize that of a block in tokens.
	Tokens, BlockSize int
	// PrefillTokens are the prompt tokens of other requests that the worker has
	// still to compute, Requests the number of its running requests, and
	// ActiveBlocks the distinct blocks that these keep.
	PrefillTokens          int64
	Requests, ActiveBlocks int32
}
