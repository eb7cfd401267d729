package load

import (
	"math"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Columns are the loads of the members of a list. Each slice is indexed by member
// number.
type Columns struct {
	// PrefillTokens are the prompt tokens that still have to be computed.
	PrefillTokens []int64
	// ActiveBlocks are the distinct prompt blocks and the output blocks of the
	// active requests, weighted and rounded.
	ActiveBlocks []int32
	// Requests is the number of active requests.
	Requests []int32
}

// Align makes m the list of workers that the columns are for: each column has the load of m.List[i]
// at i. Align costs nothing if m is the list already, and otherwise time linear in the members. The
// load of a worker outside the list is kept until the worker becomes a member.
func (a *Account) Align(m *index.Members) {
	if m == a.members {
		return
	}
	a.renumber(m)
	n := len(m.List)
	a.columns = Columns{
		PrefillTokens: zeros(a.columns.PrefillTokens, n),
		ActiveBlocks:  zeros(a.columns.ActiveBlocks, n),
		Requests:      zeros(a.columns.Requests, n),
	}
	now := a.clock()
	for _, w := range a.slots {
		if w != nil {
			a.updateColumns(w, now)
		}
	}
}

// renumber makes m the list of members and gives each workload its member number in m. A
// worker outside m becomes notMember. Both lists are ordered by worker, so one pass finds
// the workers of both.
func (a *Account) renumber(m *index.Members) {
	a.renumbered = zeros(a.renumbered, len(a.members.List))
	next := 0 // in m.List
	for i := range a.members.List {
		a.renumbered[i] = notMember
		worker := a.members.List[i].Worker
		for next < len(m.List) && m.List[next].Worker.Compare(worker) < 0 {
			next++
		}
		if next < len(m.List) && m.List[next].Worker == worker {
			a.renumbered[i] = int32(next)
		}
	}
	a.members = m
	for _, w := range a.slots {
		if w == nil {
			continue
		}
		if w.member != notMember {
			w.member = a.renumbered[w.member]
		} else if i, ok := m.Find(w.worker); ok {
			w.member = int32(i)
		}
	}
}

// zeros returns a slice of n zeros, in the memory of s if s is long enough.
func zeros[T int32 | int64](s []T, n int) []T {
	if n > cap(s) {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// updateColumns computes the columns of worker w for the time now. Call it after each change of w.
// A worker outside the list of members has no columns.
func (a *Account) updateColumns(w *workload, now time.Duration) {
	isListed := w.decayingIndex != notDecaying
	if decays := w.prefill.decays(); decays != isListed {
		a.setDecaying(w, decays)
	}
	if w.member == notMember {
		return
	}
	a.columns.PrefillTokens[w.member] = w.prefill.remaining(now)
	a.columns.ActiveBlocks[w.member] = rounded(w.activeWeight)
	a.columns.Requests[w.member] = int32(w.requests.n)
}

// setDecaying adds worker w to a.decaying, the workers whose prefill tokens change with time, or
// removes w from there. Columns computes their tokens anew.
func (a *Account) setDecaying(w *workload, decays bool) {
	if decays {
		w.decayingIndex = int32(len(a.decaying))
		a.decaying = append(a.decaying, w)
		return
	}
	last := len(a.decaying) - 1
	moved := a.decaying[last]
	a.decaying[w.decayingIndex] = moved
	moved.decayingIndex = w.decayingIndex
	a.decaying[last] = nil
	a.decaying = a.decaying[:last]
	w.decayingIndex = notDecaying
}

// rounded returns a sum of weights in whole blocks, halves rounded up. It first adds a
// millionth of a block, because a sum of inexact weights may be just below a half.
func rounded(weight int64) int32 {
	return int32(min((weight+one/2+one>>20)/one, math.MaxInt32))
}

// Columns returns the loads of the workers in the list of Align, up to date: prefill tokens may run
// down with time. The columns are read-only and valid until the next call of the account.
func (a *Account) Columns() *Columns {
	if len(a.decaying) > 0 {
		now := a.clock()
		for _, w := range a.decaying {
			if w.member != notMember {
				a.columns.PrefillTokens[w.member] = w.prefill.remaining(now)
			}
		}
	}
	return &a.columns
}

// Shared is the number of leading blocks of a sequence that are active on a member,
// at least one.
type Shared struct {
	Member int32
	Blocks int32
}

// Shared appends to dst the workers in the list of Align whose active requests share leading blocks
// with sequence, each once, in no order. The time is linear in these workers and blocks.
func (a *Account) Shared(dst []Shared, sequence []kv.SequenceHash) []Shared {
	n, depth := &a.prompts.root, 0 // the deepest node reached, and the matched blocks
	for depth < len(sequence) {
		child := n.children[sequence[depth]]
		if child == nil {
			break
		}
		dst = a.appendShared(dst, n.shares, child.shares, depth)
		matched := common(child.hashes, sequence[depth:])
		n, depth = child, depth+matched
		if matched < len(child.hashes) {
			break
		}
	}
	return a.appendShared(dst, n.shares, nil, depth)
}

// appendShared appends to dst the workers in the list of Align whose requests share exactly the
// first depth blocks of the sequence. shares are the workers at the node that ends there, deeper
// those at the next node. Both are ordered by slot, and each worker of deeper is in shares too.
func (a *Account) appendShared(dst []Shared, shares, deeper []share, depth int) []Shared {
	for i := range shares {
		if len(deeper) > 0 && deeper[0].slot == shares[i].slot {
			deeper = deeper[1:]
			continue
		}
		if m := a.slots[shares[i].slot].member; m != notMember {
			dst = append(dst, Shared{Member: m, Blocks: int32(depth)})
		}
	}
	return dst
}
