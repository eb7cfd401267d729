package schedule

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// Scheduler chooses workers and keeps the account of their requests. Make one with New.
type Scheduler struct {
	options  Options
	config   Config
	selector Selector
	cost     *CostSelector // selector, if it is a CostSelector
	now      func() time.Time

	mu        sync.Mutex
	account   *load.Account
	overloads *overloads
	queue     *queue.Queue
	// mayWait is true when requests of some class of queue may wait. It is read without mu.
	mayWait atomic.Bool
	// account, overloads, queue and workers use the member numbers of the list members. setMembers
	// changes the list for all of them.
	members *index.Members
	workers []WorkerConfig
	// memberChanges counts the changes of members and workers.
	memberChanges uint64
	freeWorkers   []freeMembers // by class, and at the end for overdue requests
	repriced      int           // held requests that this dispatch has priced again
	moved         int           // requests that this dispatch has given another favourite
	stats         Stats
	started       time.Time

	// Scratch memory of one decision, reused so that a decision allocates nothing.
	selection  Selection
	override   Config
	candidates []int32
	active     []load.Shared
	booking    load.Request
	// claims are the tokens that held requests claim on each member, and claimedLoads the loads with them: see
	// addClaims. others are the candidates without a claim.
	claims       []int64
	claimedLoads load.Columns
	others       []int32
	// decidesWaiter is true while the scheduler decides for a request that has waited.
	decidesWaiter bool
	// probeItem and probedMembers are scratch memory of Queue.Waits and itemBusy. allBusy is the method
	// value of itemBusy, created once because each method value allocates.
	probeItem     queue.Item
	probedMembers []int32
	allBusy       func(*queue.Item) bool
}

// Stats is a snapshot of a scheduler. The metric names follow "blockyard_router_".
type Stats struct {
	Load  load.Stats
	Queue queue.Stats
	// Cost is zero unless the selector is a CostSelector.
	Cost           CostStats
	Unbooked       uint64 `metric:"requests_unbooked" help:"Requests routed without a booking, because the account was full."`
	NoEndpoints    uint64 `metric:"requests_without_endpoints" help:"Requests that found no worker."`
	Filtered       uint64 `metric:"requests_filtered" help:"Requests whose requirements no worker met."`
	Overloaded     uint64 `metric:"requests_overloaded" help:"Requests whose workers were all overloaded."`
	RolledBack     uint64 `metric:"requests_rolled_back" help:"Requests that got a worker after their caller had left."`
	Refreshed      uint64 `metric:"queue_refreshed" help:"Requests whose overlap was computed again after a long wait."`
	UnknownReports uint64 `metric:"used_blocks_unknown" help:"Reports of used blocks by unknown workers."`
}

// New returns a scheduler without workers and requests. The error names the option that is
// out of range.
func New(o Options) (*Scheduler, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	o = o.withDefaults()
	account, err := load.New(o.Load)
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	q, err := queue.New(o.Queue)
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	s := &Scheduler{
		options: o, config: o.Config, selector: o.Selector, now: o.Load.Now,
		account: account, overloads: newOverloads(o.Busy, o.Load.Now), queue: q,
		members: &index.Members{}, started: o.Load.Now(),
	}
	s.freeWorkers = make([]freeMembers, len(q.Options().Profile.Classes)+1)
	s.mayWait.Store(q.Options().Enabled())
	s.allBusy = s.itemBusy // once, because each method value allocates
	if s.selector == nil {
		s.selector = NewCostSelector(CostOptions{Seed: o.Config.Seed, Estimator: o.Estimator, Held: o.Held})
	}
	s.cost, _ = s.selector.(*CostSelector)
	return s, nil
}

// ReadsShared reports whether a decision uses Request.SharedHits, so that the caller asks the
// shared cache only when its answer matters. pinned and o are the request's; both may be nil.
func (s *Scheduler) ReadsShared(pinned *kv.Worker, o *Override) bool {
	if _, ignores := s.selector.(CacheIgnorer); ignores || pinned != nil {
		return false
	}
	multiplier := s.config.SharedMultiplier
	if o != nil && o.SharedMultiplier != nil {
		multiplier = *o.SharedMultiplier
	}
	return s.cost == nil || multiplier > 0 // another selector may always use them
}

// validate reports the first field that is out of range.
func (r *Request) validate() error {
	switch {
	case r.BlockSize <= 0 || r.BlockSize > math.MaxInt32:
		return fmt.Errorf("request %q block size: %d is not in 1..%d", r.ID, r.BlockSize, math.MaxInt32)
	case r.Tokens < 0 || r.Tokens > math.MaxInt32:
		return fmt.Errorf("request %q tokens: %d is not in 0..%d", r.ID, r.Tokens, math.MaxInt32)
	case !(math.Abs(r.PriorityJump) <= math.MaxFloat64): // in this form it refuses NaN too
		return fmt.Errorf("request %q priority jump: %v is not a finite number", r.ID, r.PriorityJump)
	case r.Members == nil && len(r.Hits)+len(r.Overlaps) > 0:
		return fmt.Errorf("request %q: hits without Members", r.ID)
	case r.Deadline < 0:
		return fmt.Errorf("request %q deadline: %v is negative", r.ID, r.Deadline)
	case r.Book && r.ID == "":
		return errors.New("request id: must not be empty in a request to book")
	}
	for _, p := range r.PreferredTaints {
		if !(math.Abs(p.Weight) <= math.MaxFloat64) {
			return fmt.Errorf("request %q preferred taint %q weight: %v is not a finite number", r.ID, p.Taint, p.Weight)
		}
	}
	if r.Override != nil {
		if err := r.Override.Validate(); err != nil {
			return fmt.Errorf("request %q: %w", r.ID, err)
		}
	}
	return nil
}

// eligible returns the numbers of the members that pass the filter and are not overloaded,
// in the memory of the empty dst. A nil result without an error means all members. The error
// says why no member is eligible. The caller holds s.mu.
func (s *Scheduler) eligible(dst []int32, f filter) ([]int32, error) {
	c := cluster{s.members, s.workers, s.overloads.current(s.account.Columns())}
	return c.eligible(dst, f)
}

// decide chooses a worker for r among the eligible members, and books r if r.Book is set. The
// caller holds s.mu and has called withLatestMembers for r. The error says why no member
// is eligible, or is one of choose.
func (s *Scheduler) decide(r *Request, t turn) (Result, error) {
	candidates, err := s.eligible(s.candidates[:0], r.filter())
	if err != nil {
		s.countRefusal(err)
		return Result{}, fmt.Errorf("request %q: %w", r.ID, err)
	}
	if candidates != nil {
		s.candidates = candidates // keeps the memory for the next decision
	}
	return s.choose(r, candidates, t)
}

// countRefusal counts a request that found no eligible worker. err is the reason, an error of
// eligible.
func (s *Scheduler) countRefusal(err error) {
	switch {
	case errors.Is(err, ErrNoEndpoints):
		s.stats.NoEndpoints++
	case errors.Is(err, ErrAllFiltered), errors.Is(err, ErrPinnedNotAllowed):
		s.stats.Filtered++
	default:
		s.stats.Overloaded++
	}
}

// choose returns the selector's choice among the candidates, and books r if r.Book is set.
// candidates are member numbers, ascending; nil means all members. The caller holds s.mu and
// has called withLatestMembers for r.
//
// The error is the selector's, or ErrBadSelection, a booking error, or a *heldError if the request had
// better wait. When the account has
// no room, choose returns the worker without a booking and without an error.
func (s *Scheduler) choose(r *Request, candidates []int32, t turn) (Result, error) {
	s.active = s.active[:0] // the blocks of r that other requests keep active, by worker
	if len(r.Sequence) > 0 {
		s.active = s.account.Shared(s.active, r.Sequence)
	}
	s.selection = Selection{
		Request: r, Config: &s.config, Members: s.members, Candidates: candidates,
		Loads: s.account.Columns(), Active: s.active, Workers: s.workers,
	}
	defer func() { s.selection = Selection{} }() // keeps no request alive
	in := &s.selection
	s.addClaims(in, t)
	if r.Override != nil {
		s.override = s.config
		r.Override.apply(&s.override)
		in.Config = &s.override
	}
	member, err := s.selector.Select(in)
	if err != nil {
		return Result{}, fmt.Errorf("request %q: %w", r.ID, err)
	}
	if !in.has(member) {
		return Result{}, fmt.Errorf("request %q: member %d of %d: %w", r.ID, member, len(s.members.List), ErrBadSelection)
	}
	if err := s.checkWait(in, member, t); err != nil {
		return Result{}, err
	}
	if others := s.unclaimed(in, member, t); len(others) > 0 {
		return s.choose(r, others, t)
	}
	if r.Explain != nil && s.cost != nil {
		s.cost.explain(in)
	}
	result := s.result(in, member)
	if r.Book {
		cached, awaited := s.bookedCached(r, &result)
		err := s.book(r, result.Worker, cached, awaited)
		switch {
		case err == nil:
			result.Booked, result.Booking = true, s.account.LastBooking()
		case errors.Is(err, load.ErrTooManyRequests):
			s.stats.Unbooked++
		default:
			return Result{}, err
		}
	}
	return result, nil
}

// result returns the Result for a decision whose selector chose member m. in has the
// selector's input and the outcome that it reported. Nothing is booked yet.
func (s *Scheduler) result(in *Selection, m int) Result {
	r := in.Request
	out := Result{
		Worker: s.members.List[m].Worker, Member: m, Members: s.members,
		Hits: r.hitsOf(int32(m)), InFlight: in.inFlight(int32(m)),
		Cost: in.Outcome.Cost, Prefill: in.Outcome.Prefill, Decode: in.Outcome.Decode, Mode: in.Outcome.Mode,
		Weight: in.Outcome.Weight, TaintFactor: in.Outcome.TaintFactor, Price: in.Outcome.Price, Objective: in.Outcome.Objective,
	}
	out.Effective = s.effective(r, int32(m))
	out.CachedTokens = CachedTokens(out.Effective, r.BlockSize)
	out.PotentialBlocks = potentialBlocks(r, in.Loads.ActiveBlocks[m], sharedOf(in.Active, int32(m)))
	return out
}

// effective returns the blocks of r that member m has, weighted by tier. The blocks are
// those of r.Hits, or of r.Overlaps when r has no hits.
func (s *Scheduler) effective(r *Request, m int32) float64 {
	if len(r.Hits) == 0 {
		return r.overlapOf(m)
	}
	return s.config.Effective(r.hitsOf(m))
}

// potentialBlocks returns the number of active blocks of a worker once r runs there. active
// counts the worker's active blocks without r. shared counts the active blocks that are
// blocks of r too. A partial block of r is never shared and counts in full.
func potentialBlocks(r *Request, active, shared int32) int {
	return int(active) + r.Blocks() - int(shared)
}

// sharedOf returns how many blocks of a request are already active on member m. active has
// the members with such blocks.
func sharedOf(active []load.Shared, m int32) int32 {
	for _, a := range active {
		if a.Member == m {
			return a.Blocks
		}
	}
	return 0
}

// book adds r to the account, the load of booked requests, on worker w. cached counts the
// tokens of the prompt that need no computing, those of awaited included. The error is one of package
// load. The caller holds s.mu.
func (s *Scheduler) book(r *Request, w kv.Worker, cached int, awaited load.Awaited) error {
	s.booking = load.Request{
		ID: r.ID, Worker: w, Sequence: r.Sequence,
		ExpectedOutput: r.ExpectedOutput, BlockSize: r.BlockSize,
		Provisional: r.Provisional && s.decidesWaiter, // the caller may have left while r waited
	}
	if r.TrackPrefill {
		s.booking.PrefillTokens, s.booking.Awaited = max(0, r.Tokens-cached), awaited
		if s.options.PrefillDuration != nil && s.booking.PrefillTokens > 0 {
			s.booking.PrefillDuration = s.options.PrefillDuration(w, s.booking.PrefillTokens, cached)
		}
	}
	defer func() { s.booking = load.Request{} }() // keeps no request alive
	return s.account.Add(&s.booking)
}
