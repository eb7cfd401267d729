package modes

import (
	"errors"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// ErrNotPinned says that a request names no worker although the mode is direct.
var ErrNotPinned = errors.New("worker: is required, because router_mode is direct")

var (
	_ schedule.Selector     = (*RoundRobin)(nil)
	_ schedule.Selector     = (*Random)(nil)
	_ schedule.Selector     = (*PowerOfTwo)(nil)
	_ schedule.Selector     = (*LeastLoaded)(nil)
	_ schedule.Selector     = Direct{}
	_ schedule.CacheIgnorer = (*RoundRobin)(nil)
	_ schedule.CacheIgnorer = (*Random)(nil)
	_ schedule.CacheIgnorer = (*PowerOfTwo)(nil)
	_ schedule.CacheIgnorer = (*LeastLoaded)(nil)
	_ schedule.CacheIgnorer = Direct{}
)

// RoundRobin chooses the workers in turn. A worker that comes or goes does not change the
// order of the others. A pinned request takes no turn. Prompts that are only computed, answers to prompts that
// other workers have computed, and whole requests have turns of their own: they have other candidates, and with
// one turn for all each would always get the first worker behind the others'. The zero value is ready.
type RoundRobin struct {
	turns [3]turn
}

// turn is the last choice.
type turn struct {
	last    kv.Worker
	started bool
}

// turnOf returns the turn of a request.
func (s *RoundRobin) turnOf(r *schedule.Request) *turn {
	switch {
	case r.HandedOver:
		return &s.turns[2]
	case r.ExpectedOutput == 1:
		return &s.turns[1]
	}
	return &s.turns[0]
}

// IgnoresCache implements schedule.CacheIgnorer.
func (*RoundRobin) IgnoresCache() {}

// Select implements schedule.Selector: it returns the member number of the first candidate
// after the previous choice, in the order of workers.
func (s *RoundRobin) Select(in *schedule.Selection) (member int, err error) {
	if in.Request.Pinned != nil { // the pinned worker is the only candidate
		return in.At(0), nil
	}
	t, next := s.turnOf(in.Request), 0
	if t.started {
		for next < in.Len() && in.Members.List[in.At(next)].Worker.Compare(t.last) <= 0 {
			next++
		}
	}
	if next == in.Len() {
		next = 0
	}
	member = in.At(next)
	t.last, t.started = in.Members.List[member].Worker, true
	return member, nil
}

// newDraw returns a source of random numbers; seed 0 stands for a random seed.
func newDraw(seed uint64) *rand.Rand {
	if seed == 0 {
		seed = rand.Uint64()
	}
	return rand.New(rand.NewPCG(seed, seed))
}

// Random chooses each candidate with the same probability.
type Random struct{ draw *rand.Rand }

// NewRandom returns a Random. A seed makes its choices repeatable; 0 does not.
func NewRandom(seed uint64) *Random { return &Random{newDraw(seed)} }

// IgnoresCache implements schedule.CacheIgnorer.
func (*Random) IgnoresCache() {}

// Select implements schedule.Selector: it returns the member number of a random candidate.
func (s *Random) Select(in *schedule.Selection) (member int, err error) {
	if in.Request.Pinned != nil { // the pinned worker is the only candidate
		return in.At(0), nil
	}
	return in.At(s.draw.IntN(in.Len())), nil
}

// PowerOfTwo draws two candidates and chooses the one with less load.
type PowerOfTwo struct{ draw *rand.Rand }

// NewPowerOfTwo returns a PowerOfTwo. A seed makes its draws repeatable; 0 does not.
func NewPowerOfTwo(seed uint64) *PowerOfTwo { return &PowerOfTwo{newDraw(seed)} }

// IgnoresCache implements schedule.CacheIgnorer.
func (*PowerOfTwo) IgnoresCache() {}

// Select implements schedule.Selector: it returns the member number of the candidate with
// less load of two random ones. Of two with equal loads it returns the first drawn.
func (s *PowerOfTwo) Select(in *schedule.Selection) (member int, err error) {
	n := in.Len()
	if in.Request.Pinned != nil || n == 1 { // the pinned worker is the only candidate
		return in.At(0), nil
	}
	first, second := s.draw.IntN(n), s.draw.IntN(n-1)
	if second >= first { // so that the two differ and all pairs are equally likely
		second++
	}
	a, b := in.At(first), in.At(second)
	if less(in, b, a) {
		return b, nil
	}
	return a, nil
}

// LeastLoaded chooses the candidate with the least load.
type LeastLoaded struct{ draw *rand.Rand }

// NewLeastLoaded returns a LeastLoaded. A seed makes its draws among equally loaded
// candidates repeatable; 0 does not.
func NewLeastLoaded(seed uint64) *LeastLoaded { return &LeastLoaded{newDraw(seed)} }

// IgnoresCache implements schedule.CacheIgnorer.
func (*LeastLoaded) IgnoresCache() {}

// Select implements schedule.Selector: it returns the member number of the candidate with
// the least load. Among several with that load it draws one, or takes the first with
// schedule.TieFirst. A pinned worker is the only candidate.
func (s *LeastLoaded) Select(in *schedule.Selection) (member int, err error) {
	best, equal := in.At(0), 1
	for k := 1; k < in.Len(); k++ {
		m := in.At(k)
		switch {
		case less(in, m, best):
			best, equal = m, 1
		case less(in, best, m) || in.Config.Tie == schedule.TieFirst:
		default:
			// The n-th of equal candidates replaces best with probability 1/n. So each of
			// them is drawn with the same probability.
			if equal++; s.draw.IntN(equal) == 0 {
				best = m
			}
		}
	}
	return best, nil
}

// less reports whether member a has less load than member b: fewer booked requests, or as
// many and fewer prompt tokens to compute.
func less(in *schedule.Selection, a, b int) bool {
	l := in.Loads
	if l.Requests[a] != l.Requests[b] {
		return l.Requests[a] < l.Requests[b]
	}
	return l.PrefillTokens[a] < l.PrefillTokens[b]
}

// Direct sends each request to the worker that the request names.
type Direct struct{}

// IgnoresCache implements schedule.CacheIgnorer.
func (Direct) IgnoresCache() {}

// Select implements schedule.Selector. The error is ErrNotPinned.
func (Direct) Select(in *schedule.Selection) (int, error) {
	if in.Request.Pinned == nil {
		return 0, ErrNotPinned
	}
	return in.At(0), nil
}
