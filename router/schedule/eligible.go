package schedule

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

func hasTaint(w *WorkerConfig, taint string) bool { return slices.Contains(w.Taints, taint) }

func hasTaints(w *WorkerConfig, taints []string) bool {
	for _, t := range taints {
		if !hasTaint(w, t) {
			return false
		}
	}
	return true
}

// filter is what a request demands of its worker.
type filter struct {
	pinned  *kv.Worker
	allowed map[kv.WorkerID]struct{}
	taints  []string
}

func (r *Request) filter() filter { return filter{r.Pinned, r.Allowed, r.RequiredTaints} }

// cluster is the workers as they are at the moment: one entry per member in each
// slice.
type cluster struct {
	members *index.Members
	workers []WorkerConfig
	// overload says who is overloaded; nil means nobody.
	overload []bool
}

// eligible is the members that pass the filter, ascending, in the memory of dst,
// which is empty; nil means all of them. The error says why there is none.
func (c *cluster) eligible(dst []int32, f filter) ([]int32, error) {
	if len(c.members.List) == 0 {
		return nil, ErrNoEndpoints
	}
	if f.pinned != nil {
		return c.eligiblePin(dst, f)
	}
	if f.allowed == nil && len(f.taints) == 0 && c.overload == nil {
		return nil, nil
	}
	dst = c.allowed(dst, f)
	if len(dst) == 0 {
		return nil, fmt.Errorf("%w among the %d allowed", ErrNoEndpoints, len(f.allowed))
	}
	if len(f.taints) > 0 {
		dst = slices.DeleteFunc(dst, func(m int32) bool { return !hasTaints(&c.workers[m], f.taints) })
	}
	if len(dst) == 0 {
		return nil, fmt.Errorf("%w: %q", ErrAllFiltered, f.taints)
	}
	if c.overload != nil {
		dst = slices.DeleteFunc(dst, func(m int32) bool { return c.overload[m] })
	}
	if len(dst) == 0 {
		return nil, ErrAllOverloaded
	}
	return dst, nil
}

func (c *cluster) eligiblePin(dst []int32, f filter) ([]int32, error) {
	if !f.allows(f.pinned.ID) {
		return nil, fmt.Errorf("worker %s: %w", f.pinned, ErrPinnedNotAllowed)
	}
	m, ok := c.members.Find(*f.pinned)
	switch {
	case !ok:
		return nil, fmt.Errorf("pinned worker %s: %w", f.pinned, ErrNoEndpoints)
	case !hasTaints(&c.workers[m], f.taints):
		return nil, fmt.Errorf("worker %s without the taints %q: %w", f.pinned, f.taints, ErrPinnedNotAllowed)
	case c.overload != nil && c.overload[m]:
		return nil, fmt.Errorf("worker %s: %w", f.pinned, ErrPinnedOverloaded)
	}
	return append(dst, int32(m)), nil
}

func (f *filter) allows(id kv.WorkerID) bool {
	if f.allowed == nil {
		return true
	}
	_, ok := f.allowed[id]
	return ok
}
