package schedule

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
)

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
