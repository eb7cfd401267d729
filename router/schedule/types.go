package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Request is a request to be sent to a worker. Everything that it refers to is
// borrowed until the call that it is given to returns, and not kept.
type Request struct {
	// ID names the request in later calls; it may be empty without Book.
	ID string
	// Book puts the request on the account of the chosen worker.
	Book bool
	// Tokens is the length of the prompt; BlockSize is in tokens and not 0.
	Tokens, BlockSize int
	// Sequence are the blocks that count as active on the worker while the
	// request runs, as a rule the SequenceHashes of its full blocks. Nil tracks
	// none.
	Sequence []kv.SequenceHash
	// Provisional says that who asks may leave unnoticed while the request waits. When
	// it has waited it is booked as such: see load.Request.
	Provisional bool
	// Waits, when set, is called before the request begins to wait. It must not call
	// the scheduler.
	Waits func()
	// Locals are the prompt's blocks for Options.Refresh; a scheduler does not look
	// at them.
	Locals []kv.LocalHash
	// Members are the workers to choose from, and Hits what they have of the
	// prompt, ordered by member: see index.Matches.
	Members *index.Members
	Hits    []index.Hit
	// Overlaps give effective overlaps in place of Hits, for callers that know
	// nothing else; they are looked at when Hits is empty, and ordered by member.
	Overlaps []Overlap
	// SharedHits are the prompt's blocks in the shared cache; nil means that none
	// was asked.
	SharedHits *SharedHits
	// TrackPrefill says whether the prompt counts as prefill to be done.
	TrackPrefill bool
	// Override replaces parts of the Config; nil replaces nothing.
	Override *Override
	// StrictPriority orders waiting requests, higher first; among equals
	// PriorityJump, in seconds, moves a request forward.
	StrictPriority uint32
	PriorityJump   float64
	// ExpectedOutput is the expected number of tokens to be generated, 0 when
	// unknown: it lets output blocks fade. LoRA is the adapter's name. Both are for
	// the account only.
	ExpectedOutput int
	LoRA           string
	// Pinned is the only worker that will do. It is taken without weighing.
	Pinned *kv.Worker
	// Allowed limits the choice; nil allows all workers.
	Allowed map[kv.WorkerID]struct{}
	// RequiredTaints must all be the worker's. PreferredTaints multiply the cost
	// of a worker that has them by exp(-tanh(sum of their weights)), so that a
	// weight above 0 attracts and one below repels.
	RequiredTaints  []string
	PreferredTaints []TaintPreference
	// Explain, when set, is given every candidate that a CostSelector weighs. It
	// is called with the scheduler's lock held, by whichever goroutine chooses,
	// and must not call the scheduler. What it is given is only valid meanwhile.
	Explain func(c *Candidate)
}

// Overlap is the effective overlap of one member with a prompt, in blocks.
type Overlap struct {
	Member int32
	Blocks float64
}

// TaintPreference is how much a request likes workers with a taint; a negative
// weight is dislike.
type TaintPreference struct {
	Taint  string
	Weight float64
}

// Blocks is the number of blocks of the prompt, a partial one included.
func (r *Request) Blocks() int { return (r.Tokens + r.BlockSize - 1) / r.BlockSize }

// hitsOf is what a member has of the prompt.
func (r *Request) hitsOf(member int32) index.Hits {
	at, ok := slices.BinarySearchFunc(r.Hits, member, func(h index.Hit, m int32) int { return cmp.Compare(h.Member, m) })
	if !ok {
		return index.Hits{}
	}
	return r.Hits[at].Hits
}

// overlapOf is the effective overlap that the caller gives of a member.
func (r *Request) overlapOf(member int32) float64 {
	at, ok := slices.BinarySearchFunc(r.Overlaps, member, func(o Overlap, m int32) int { return cmp.Compare(o.Member, m) })
	if !ok {
		return 0
	}
	return r.Overlaps[at].Blocks
}

// Result is the worker that a request goes to.
type Result struct {
	Worker kv.Worker
	// Member is the worker's place in Members, the list that was chosen from: the
	// request's own, or a newer one when the request has waited.
	Member  int
	Members *index.Members
	// Hits are the worker's; Effective is their weighted number in blocks, and
	// CachedTokens the same in tokens.
	Hits         index.Hits
	Effective    float64
	CachedTokens int
	// Cost is what the worker won with: in blocks, or milliseconds when Mode is
	// ModeCost. Prefill and Decode are its parts in blocks. A selector that does
	// not weigh leaves all three 0.
	Cost, Prefill, Decode float64
	// PotentialBlocks are the blocks that decode on the worker with this request.
	PotentialBlocks int
	// Mode is how a CostSelector chose: ModeWeights, ModeCost, or ModeWeights with
	// a colon and what the cost mode was missing. Other selectors may say nothing.
	Mode string
	// Booked says whether the request is on the worker's account, and Booking is the
	// number by which FreeBooking knows it.
	Booked  bool
	Booking uint64
	// Waited is how long the request was queued.
	Waited time.Duration
}

// Ways to choose, as Result.Mode has them.
const (
	ModeWeights = "weights"
	ModeCost    = "cost"
)

// Candidate is one worker as a CostSelector weighed it.
type Candidate struct {
	Worker       kv.Worker
	Hits         index.Hits
	Effective    float64
	CachedTokens int
	// Cost is Weight times Prefill plus Decode, all in blocks, times TaintFactor,
	// which is 1 without preferred taints. In cost mode it is milliseconds times
	// that factor, and Weight, Prefill and Decode are 0.
	Cost, Weight, Prefill, Decode, TaintFactor float64
	// Mode is as in Result.
	Mode string
}

// WorkerConfig is what the scheduler has to know of a worker.
type WorkerConfig struct {
	// MaxBatchedTokens is how many tokens the worker computes in a step, 0 when
	// unknown. TotalBlocks is the capacity of its device in blocks, 0 when unknown.
	MaxBatchedTokens, TotalBlocks uint64
	// Taints are the worker's labels. They are not changed after they were given.
	Taints []string
}

// PotentialLoad is what a worker would have to do if it were given a request.
type PotentialLoad struct {
	Worker kv.Worker
	// PrefillTokens are prompt tokens to compute, DecodeBlocks distinct prompt
	// blocks to keep, a partial one of the request included.
	PrefillTokens, DecodeBlocks int
}
