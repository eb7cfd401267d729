package schedule

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// bits is a set of members.
type bits []uint64

// cleared is an empty set for n members, in the memory of b if that is large enough.
func (b bits) cleared(n int) bits {
	words := (n + 63) / 64
	b = slices.Grow(b[:0], words)[:words]
	clear(b)
	return b
}

func (b bits) add(m int)      { b[m/64] |= 1 << (m % 64) }
func (b bits) has(m int) bool { return b[m/64]&(1<<(m%64)) != 0 }

// room says who has room for requests that wait: free are the members that are neither
// overloaded nor busy. It is made once for as many lanes as ask, until a load changes.
type room struct {
	known bool
	free  bits
}

// survey makes s.room say how things are now.
func (s *Scheduler) survey() {
	if s.room.known {
		return
	}
	loads, options, n := s.account.Columns(), s.queue.Options(), len(s.members.List)
	r := &s.room
	overload := s.busy.current(loads)
	r.known, r.free = true, r.free.cleared(n)
	for m, prefill := range loads.PrefillTokens {
		if (overload == nil || !overload[m]) && !options.Busy(prefill, s.workers[m].MaxBatchedTokens) {
			r.free.add(m)
		}
	}
}

// laneBusy is itemBusy for an item that waits: what it may go to is known by its lane.
// An overloaded worker is busy for it. Overload refuses who arrives, and may be over
// at the next report.
func (s *Scheduler) laneBusy(i *Item) bool {
	s.survey()
	if i.Pinned != nil {
		c := cluster{s.members, s.workers, nil}
		found, err := c.eligiblePin(s.probed[:0], filter{i.Pinned, i.Allowed, i.RequiredTaints})
		return err == nil && !s.room.free.has(int(found[0]))
	}
	some := uint64(0)
	for k, may := range s.mayServe(i) {
		if may&s.room.free[k] != 0 {
			return false
		}
		some |= may
	}
	return some != 0
}

// mayServe are the members that may serve an item that waits, overloaded ones too.
func (s *Scheduler) mayServe(i *Item) bits {
	l := i.lane
	if l.aligned == s.alignments {
		return l.may
	}
	l.may, l.aligned = l.may.cleared(len(s.members.List)), s.alignments
	f, c := filter{nil, i.Allowed, i.RequiredTaints}, cluster{s.members, s.workers, nil}
	if f.allowed == nil {
		for m := range s.members.List {
			if hasTaints(&s.workers[m], f.taints) {
				l.may.add(m)
			}
		}
		return l.may
	}
	s.probed = c.allowed(s.probed[:0], f)
	for _, m := range s.probed {
		if hasTaints(&s.workers[m], f.taints) {
			l.may.add(int(m))
		}
	}
	return l.may
}

// allowed appends to dst the members whose workers are allowed, ascending. It looks at
// the smaller of what is allowed and what there is.
func (c *cluster) allowed(dst []int32, f filter) []int32 {
	list := c.members.List
	if len(f.allowed) >= len(list)/16 {
		for m := range list {
			if f.allows(list[m].Worker.ID) {
				dst = append(dst, int32(m))
			}
		}
		return dst
	}
	first := len(dst)
	for id := range f.allowed {
		m, _ := slices.BinarySearchFunc(list, id, compareID)
		for ; m < len(list) && list[m].Worker.ID == id; m++ {
			dst = append(dst, int32(m))
		}
	}
	slices.Sort(dst[first:])
	return dst
}

// compareID orders a member before an id when all ranks of that come behind it.
func compareID(m index.Member, id kv.WorkerID) int { return cmp.Compare(m.Worker.ID, id) }
