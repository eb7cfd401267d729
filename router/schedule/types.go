package schedule

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// Request is a request that needs a worker. The memory that the request refers to must not
// change until the call returns.
type Request struct {
	// ID names the request in later calls. ID may be empty without Book.
	ID string
	// Book books the request on the chosen worker.
	Book bool
	// Tokens is the length of the prompt. BlockSize is in tokens and not 0.
	Tokens, BlockSize int
	// Sequence are the blocks that count as active on the worker while the request
	// runs, usually the SequenceHashes of the full blocks. Nil tracks none.
	Sequence []kv.SequenceHash
	// Provisional says that the caller may leave unnoticed while the request waits. Then a
	// request that has waited gets a provisional booking: see load.Request.
	Provisional bool
	// Waits is called before the request begins to wait. It must not call the
	// scheduler. It may be nil.
	Waits func()
	// Locals are the prompt's blocks for Options.Refresh. The scheduler does not use them.
	Locals []kv.LocalHash
	// Members are the workers to choose from. Hits are their hits of the prompt, ordered by
	// member: see index.Matches.
	Members *index.Members
	Hits    []index.Hit
	// Overlaps are effective overlaps, ordered by member, for callers that know no tiers.
	// The scheduler reads them when Hits is empty.
	Overlaps []Overlap
	// SharedHits are the prompt's blocks in the shared cache, nil without one.
	SharedHits *SharedHits
	// TrackPrefill says whether the prompt counts as prefill load.
	TrackPrefill bool
	// HandedOver says that another worker has computed the prompt, so that the chosen one gets its blocks.
	HandedOver bool
	// Override replaces parts of the Config. It may be nil.
	Override *Override
	// StrictPriority orders waiting requests, higher first. Among equals
	// PriorityJump, in seconds, moves a request forward.
	StrictPriority uint32
	PriorityJump   float64
	// PolicyClass names the request's family or explicit class in queue.Options.Profile. Deadline is the
	// time within which the request should get its worker, for classes that order by it; 0 is the
	// class's.
	PolicyClass string
	Deadline    time.Duration
	// ExpectedOutput is the expected number of generated tokens, 0 when unknown.
	// The account reduces the weight of output blocks by it.
	ExpectedOutput int
	// Pinned is the only worker that may serve the request.
	Pinned *kv.Worker
	// Allowed limits the choice; nil allows all workers.
	Allowed map[kv.WorkerID]struct{}
	// The worker must have all RequiredTaints. PreferredTaints multiply the cost of a worker
	// that has them by exp(-tanh(sum of their weights)).
	RequiredTaints  []string
	PreferredTaints []TaintPreference
	// Explain is called with every candidate of the CostSelector's decision by which the request gets its
	// worker, and not for those by which it waits. The deciding
	// goroutine calls it under the scheduler's lock. Explain must not call the scheduler. The
	// candidate is valid during the call. Explain may be nil.
	Explain func(c *Candidate)
}

// Overlap is the effective overlap of one member with a prompt, in blocks.
type Overlap struct {
	Member int32
	Blocks float64
}

// TaintPreference is a request's preference for workers with a taint. A positive Weight
// attracts, a negative Weight repels.
type TaintPreference struct {
	Taint  string
	Weight float64
}

// Blocks returns the number of blocks of the prompt, including a partial last block.
func (r *Request) Blocks() int { return (r.Tokens + r.BlockSize - 1) / r.BlockSize }

// hitsOf returns the blocks of the prompt that a member has, by tier; zero without an entry
// in r.Hits.
func (r *Request) hitsOf(member int32) index.Hits {
	at, ok := slices.BinarySearchFunc(r.Hits, member, func(h index.Hit, m int32) int { return cmp.Compare(h.Member, m) })
	if !ok {
		return index.Hits{}
	}
	return r.Hits[at].Hits
}

// overlapOf returns the overlap of a member in blocks that the caller passed in r.Overlaps; 0
// without an entry.
func (r *Request) overlapOf(member int32) float64 {
	at, ok := slices.BinarySearchFunc(r.Overlaps, member, func(o Overlap, m int32) int { return cmp.Compare(o.Member, m) })
	if !ok {
		return 0
	}
	return r.Overlaps[at].Blocks
}

// Result is the worker for a request.
type Result struct {
	Worker kv.Worker
	// Member is the worker's number in Members. Members is the list of the choice:
	// the request's own, or a newer one after a wait.
	Member  int
	Members *index.Members
	// Hits are the worker's hits, without those of InFlight. Effective is their weighted number, in blocks, and
	// CachedTokens the same in tokens.
	Hits         index.Hits
	Effective    float64
	CachedTokens int
	// InFlight counts the leading blocks of the prompt that the worker's running requests share. One of
	// them computes each block that is not a hit: see Expected. It is 0 unless Mode is ModePrice.
	InFlight uint32
	// Cost is the worker's cost in blocks, or in milliseconds when Mode is ModePrice. Prefill
	// and Decode are its parts in blocks. All are 0 from a selector that compares no costs.
	// Weight and TaintFactor are as in Candidate.
	Cost, Prefill, Decode, Weight, TaintFactor float64
	// Price has the parts of Cost when Mode is ModePrice, and Objective says which of them count.
	Price     price.Price
	Objective price.Objective
	// PotentialBlocks is the worker's number of active blocks with this request.
	PotentialBlocks int
	// Mode says how a CostSelector chose: ModeWeights or ModePrice. After a fallback from price
	// mode it is ModeWeights, a colon and the missing measure. Other selectors may leave Mode
	// empty.
	Mode string
	// Booked says whether the request is booked on the worker. Booking is the
	// number for FreeBooking.
	Booked  bool
	Booking uint64
	// Waited is how long the request waited.
	Waited time.Duration
}

// Values of Result.Mode.
const (
	ModeWeights = "weights"
	ModePrice   = "price"
)

// Candidate is one worker as a CostSelector compared it.
type Candidate struct {
	Worker       kv.Worker
	Hits         index.Hits
	Effective    float64
	CachedTokens int
	// InFlight is as in Result.
	InFlight uint32
	// Cost is (Weight * Prefill + Decode) * TaintFactor, in blocks. TaintFactor is
	// 1 without preferred taints. In price mode Cost is the total of Price times
	// TaintFactor, and Weight, Prefill and Decode are 0.
	Cost, Weight, Prefill, Decode, TaintFactor float64
	// Price has the parts in price mode, in milliseconds, and Objective says which of them count.
	Price     price.Price
	Objective price.Objective
	// Credit is what the worker's hits take off Prefill, in blocks; for decode workers off
	// Decode. 0 in price mode.
	Credit float64
	// PendingPrefill are the tokens that the worker's requests still have to compute, and those of
	// requests that wait for the worker before this one.
	// ActiveBlocks and Requests count what the worker has active. All without this request.
	PendingPrefill int64
	ActiveBlocks   int32
	Requests       int32
	// Mode is as in Result.
	Mode string
}

// WorkerConfig describes a worker to the scheduler.
type WorkerConfig struct {
	// MaxBatchedTokens is the number of tokens that the worker computes in a step.
	// TotalBlocks is the capacity of its device in blocks. 0 means unknown.
	MaxBatchedTokens, TotalBlocks uint64
	// Taints are the worker's labels. They must not change.
	Taints []string
}

// PotentialLoad is the load of a worker with a request added.
type PotentialLoad struct {
	Worker kv.Worker
	// PrefillTokens are the prompt tokens to compute, DecodeBlocks the distinct prompt blocks
	// with a partial one of the request. Requests are the active requests without this one.
	PrefillTokens, DecodeBlocks, Requests int
}

// Selection is the input of a Selector. It is valid only during the call.
type Selection struct {
	// Request is the request. Its Hits and Overlaps refer to Members.
	Request *Request
	// Config is the scheduler's configuration with the request's overrides.
	Config *Config
	// Members is the list that all member numbers refer to.
	Members *index.Members
	// Candidates are the members that may be chosen, ascending, at least one. Nil
	// means all of Members.
	Candidates []int32
	// Loads are the loads of the members. Active has, for each member with any, how many
	// leading blocks of Request.Sequence are already active there.
	Loads  *load.Columns
	Active []load.Shared
	// Workers describes the members.
	Workers []WorkerConfig
	// Outcome is for the selector to fill in.
	Outcome Outcome

	// credited is Request with the hits of CostSelector.credit. credits is true if the prices of the
	// decision are for these hits.
	credited Request
	credits  bool
}

// Len returns the number of candidates.
func (in *Selection) Len() int {
	if in.Candidates == nil {
		return len(in.Members.List)
	}
	return len(in.Candidates)
}

// At returns the member number of candidate k, 0 <= k < Len.
func (in *Selection) At(k int) int {
	if in.Candidates == nil {
		return k
	}
	return int(in.Candidates[k])
}

// Find returns the number k of the candidate that is member m. ok is false when m is no
// candidate. m is below the number of members.
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

// Selector chooses one of several workers. A Scheduler calls it under its lock, from one
// goroutine at a time.
type Selector interface {
	// Select returns the number of a member that is a candidate. Select may fill in
	// in.Outcome. An error becomes the error of the request.
	Select(in *Selection) (member int, err error)
}

// CacheIgnorer is a Selector that looks at no hits.
type CacheIgnorer interface{ IgnoresCache() }

// Outcome describes a choice: see Result.
type Outcome struct {
	Cost, Prefill, Decode, Weight, TaintFactor float64
	Price                                      price.Price
	Objective                                  price.Objective
	Mode                                       string
}

var _ Selector = (*CostSelector)(nil)

// Errors of Schedule for errors.Is. Errors of package load are returned too.
var (
	// ErrNoEndpoints says that there is no worker, or no allowed worker.
	ErrNoEndpoints = errors.New("no workers")
	// ErrAllFiltered says that no worker has the required taints.
	ErrAllFiltered = errors.New("no worker has the required taints")
	// ErrAllOverloaded says that every eligible worker is beyond a busy threshold.
	ErrAllOverloaded = errors.New("all eligible workers are overloaded")
	// ErrPinnedOverloaded says that the pinned worker is beyond a busy threshold.
	ErrPinnedOverloaded = errors.New("the pinned worker is overloaded")
	// ErrPinnedNotAllowed says that the pinned worker is not allowed, or lacks a
	// required taint.
	ErrPinnedNotAllowed = errors.New("the pinned worker is not allowed")
	// ErrBadSelection says that a selector chose a member that is no candidate.
	ErrBadSelection = errors.New("the selector chose no candidate")
)

// Range is the half-open range of block positions [First, End).
type Range struct{ First, End uint32 }

// SharedHits are the blocks of one prompt in a shared cache. They do not change. The zero
// value has no blocks.
type SharedHits struct {
	// ranges are sorted and not empty. No two touch.
	ranges []Range
	// before[i] is the number of blocks in ranges[:i].
	before []int
	total  int
}

// FromRanges returns the SharedHits for the blocks of a prompt that a shared cache has, given
// as ranges of block positions in any order. Ranges may be empty and may overlap. The slice
// is not kept.
func FromRanges(ranges []Range) SharedHits {
	sorted := slices.DeleteFunc(slices.Clone(ranges), func(r Range) bool { return r.First >= r.End })
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var h SharedHits
	for _, r := range sorted {
		if n := len(h.ranges); n > 0 && r.First <= h.ranges[n-1].End {
			h.ranges[n-1].End = max(h.ranges[n-1].End, r.End)
			continue
		}
		h.ranges = append(h.ranges, r)
	}
	for _, r := range h.ranges {
		h.before = append(h.before, h.total)
		h.total += int(r.End - r.First)
	}
	return h
}

// TotalHits returns the number of blocks.
func (h *SharedHits) TotalHits() int { return h.total }

// Beyond returns the number of blocks at position first of the prompt and after it: those
// that a worker with first leading blocks would gain from the shared cache.
func (h *SharedHits) Beyond(first int) int {
	// at is the first range that ends after position first.
	at, _ := slices.BinarySearchFunc(h.ranges, first, func(r Range, first int) int {
		if int(r.End) <= first {
			return -1
		}
		return 1
	})
	if at == len(h.ranges) {
		return 0
	}
	return h.total - h.before[at] - max(0, first-int(h.ranges[at].First))
}
