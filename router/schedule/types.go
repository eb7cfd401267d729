package schedule

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
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
	// unknown: the account lets output blocks fade by it.
	ExpectedOutput int
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

// Selection is what a Selector chooses from. It belongs to the scheduler and is
// only valid during the call.
type Selection struct {
	// Request is the request at hand; its Hits and Overlaps refer to Members.
	Request *Request
	// Config is the scheduler's, with what the request overrides.
	Config *Config
	// Members is the list that all numbers refer to.
	Members *index.Members
	// Candidates are the members that may be chosen, ascending and at least one;
	// nil means all of Members.
	Candidates []int32
	// Loads is what the members have to do, one entry per member, and Active how
	// many leading blocks of Request.Sequence are active on a member already;
	// members without any are left out.
	Loads  *load.Columns
	Active []load.Shared
	// Workers describes the members.
	Workers []WorkerConfig
	// Outcome is the selector's to fill in.
	Outcome Outcome
}

// Len is the number of candidates.
func (in *Selection) Len() int {
	if in.Candidates == nil {
		return len(in.Members.List)
	}
	return len(in.Candidates)
}

// At is the member that candidate k is, 0 <= k < Len.
func (in *Selection) At(k int) int {
	if in.Candidates == nil {
		return k
	}
	return int(in.Candidates[k])
}

// Find is the candidate that member m is.
func (in *Selection) Find(m int32) (k int, ok bool) {
	if in.Candidates == nil {
		return int(m), true
	}
	return slices.BinarySearch(in.Candidates, m)
}

// has reports whether member m is a candidate.
func (in *Selection) has(m int) bool {
	if m < 0 || m >= len(in.Members.List) {
		return false
	}
	_, ok := in.Find(int32(m))
	return ok
}

// Selector picks one of several workers. A Scheduler calls it with its lock
// held, from one goroutine at a time.
type Selector interface {
	// Select returns the number of a member that is a candidate, and may fill in
	// in.Outcome. An error ends the request with it.
	Select(in *Selection) (member int, err error)
}

// Outcome is what a selector has to say of its choice: see Result.
type Outcome struct {
	Cost, Prefill, Decode float64
	Mode                  string
}

var (
	_ Selector = (*CostSelector)(nil)
	_ Selector = (*RoundRobin)(nil)
)

// RoundRobin chooses workers in turn, whatever they hold. A worker that comes
// or goes does not disturb the turns of the others, and a request that is pinned
// takes nobody's turn. The zero value is ready.
type RoundRobin struct {
	last    kv.Worker
	started bool
}

// Select picks the first candidate after the one picked last.
func (s *RoundRobin) Select(in *Selection) (int, error) {
	if in.Request.Pinned != nil {
		return in.At(0), nil
	}
	next := 0
	if s.started {
		for next < in.Len() && in.Members.List[in.At(next)].Worker.Compare(s.last) <= 0 {
			next++
		}
	}
	if next == in.Len() {
		next = 0
	}
	member := in.At(next)
	s.last, s.started = in.Members.List[member].Worker, true
	return member, nil
}

// Errors of Schedule that callers tell apart with errors.Is; those of package
// load come through too.
var (
	// ErrNoEndpoints: there is no worker to choose from, or none of those that
	// the request may go to.
	ErrNoEndpoints = errors.New("no workers")
	// ErrAllFiltered: there are workers, and none has the required taints.
	ErrAllFiltered = errors.New("no worker has the required taints")
	// ErrAllOverloaded: every worker that the request may go to is beyond a busy
	// threshold.
	ErrAllOverloaded = errors.New("all eligible workers are overloaded")
	// ErrPinnedOverloaded: the worker that the request is pinned to is beyond a
	// busy threshold.
	ErrPinnedOverloaded = errors.New("the pinned worker is overloaded")
	// ErrPinnedNotAllowed: the worker that the request is pinned to is not among
	// the allowed ones, or has not the required taints.
	ErrPinnedNotAllowed = errors.New("the pinned worker is not allowed")
	// ErrOverride: a request replaces a setting that is not looked at.
	ErrOverride = errors.New("has no effect with score cost")
	// ErrBadSelection: a selector chose a member that is no candidate.
	ErrBadSelection = errors.New("the selector chose no candidate")
)
