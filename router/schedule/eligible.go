package schedule

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
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

// filter has a request's requirements of its worker.
type filter struct {
	pinned  *kv.Worker
	allowed map[kv.WorkerID]struct{}
	taints  []string
}

func (r *Request) filter() filter { return filter{r.Pinned, r.Allowed, r.RequiredTaints} }

// cluster has the current state of the workers: one entry per member in each slice.
type cluster struct {
	members *index.Members
	workers []WorkerConfig
	// overload is true for each member whose worker is overloaded. Nil means none.
	overload []bool
}

// eligible returns the numbers of the members that a request may go to: those that pass the
// filter and are not overloaded, ascending, in the memory of the empty dst. A nil result
// means all members, which needs no list. The error says why no member is eligible.
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

// eligiblePin checks the only worker that may serve a request, f.pinned, and appends its
// member number to dst. The error says why the worker may not serve the request.
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

// allows reports whether the request may go to this worker; without a set it may go to any.
func (f *filter) allows(id kv.WorkerID) bool {
	if f.allowed == nil {
		return true
	}
	_, ok := f.allowed[id]
	return ok
}

// BusyThresholds say when a worker is overloaded and gets no requests. A nil threshold is
// ignored. With all nil no worker is overloaded.
type BusyThresholds struct {
	// DecodeBlocks is a fraction, 0..1, of the worker's blocks. A worker becomes overloaded
	// when its active requests keep more blocks, or the worker reports more blocks in use. It
	// stays overloaded until both are below. The threshold has no effect on a worker of
	// unknown capacity.
	DecodeBlocks *float64
	// PrefillTokens bounds a worker's pending prompt tokens.
	PrefillTokens *int64
	// PrefillFraction bounds a worker's pending prompt tokens as a multiple, at least 0, of
	// MaxBatchedTokens.
	PrefillFraction *float64
}

// Validate reports the first threshold that is out of range.
func (b *BusyThresholds) Validate() error {
	if b.DecodeBlocks != nil {
		if err := checkRange("active decode blocks threshold", *b.DecodeBlocks, 1); err != nil {
			return err
		}
	}
	if b.PrefillTokens != nil && *b.PrefillTokens < 0 {
		return fmt.Errorf("active prefill tokens threshold: %d is negative", *b.PrefillTokens)
	}
	if b.PrefillFraction != nil {
		return checkRange("active prefill tokens threshold fraction", *b.PrefillFraction, MaxWeight)
	}
	return nil
}

// never reports whether no worker can be overloaded.
func (b *BusyThresholds) never() bool {
	return b.DecodeBlocks == nil && b.PrefillTokens == nil && b.PrefillFraction == nil
}

// prefillLimit returns how many pending prompt tokens worker w may have before it counts as
// overloaded: the smaller of two bounds. fraction is a multiple of MaxBatchedTokens, the
// tokens that the worker computes in one step. A nil bound is ignored.
func prefillLimit(tokens *int64, fraction *float64, w *WorkerConfig) int64 {
	limit := int64(math.MaxInt64)
	if tokens != nil {
		limit = *tokens
	}
	if fraction != nil {
		batch := float64(w.MaxBatchedTokens)
		if w.MaxBatchedTokens == 0 {
			batch = queue.UnknownBatch
		}
		// A float this large does not fit into an int64.
		if part := *fraction * batch; part < 1<<62 {
			limit = min(limit, int64(part))
		}
	}
	return limit
}

// overloads finds the members beyond the busy thresholds. Its calls must not overlap.
type overloads struct {
	thresholds BusyThresholds
	members    *index.Members
	workers    []WorkerConfig
	now        func() time.Time
	// These slices have one entry per member. usedBlocks is the last report, and reportedAt
	// its time. decodeBusy is true from when a member exceeds its decode threshold until its
	// load is below the threshold. overloaded is true when all ranks of the member's worker
	// are beyond a threshold.
	usedBlocks []uint64
	reportedAt []time.Time
	decodeBusy []bool
	overloaded []bool
}

// usedTimeout is how long a report of used blocks is valid.
const usedTimeout = time.Minute

func newOverloads(t BusyThresholds, now func() time.Time) *overloads {
	return &overloads{thresholds: t, members: &index.Members{}, now: now}
}

// align makes m the list of members, and workers their descriptions. A member number is a
// position in the list. Members of both the old and the new list keep their state under the
// new numbers.
func (o *overloads) align(m *index.Members, workers []WorkerConfig) {
	old, usedBlocks, reportedAt, decodeBusy := o.members, o.usedBlocks, o.reportedAt, o.decodeBusy
	o.members, o.workers = m, workers
	o.usedBlocks, o.reportedAt = make([]uint64, len(m.List)), make([]time.Time, len(m.List))
	o.decodeBusy, o.overloaded = make([]bool, len(m.List)), make([]bool, len(m.List))
	for i, w := range old.List {
		if number, ok := m.Find(w.Worker); ok {
			o.usedBlocks[number], o.reportedAt[number], o.decodeBusy[number] = usedBlocks[i], reportedAt[i], decodeBusy[i]
		}
	}
}

// report records the number of device blocks in use that a worker reports. known is false
// for a worker that is no member; the report is then ignored.
func (o *overloads) report(w kv.Worker, used uint64) (known bool) {
	member, ok := o.members.Find(w)
	if ok {
		o.usedBlocks[member], o.reportedAt[member] = used, o.now()
	}
	return ok
}

// current returns for each member number whether its worker is overloaded and gets no
// requests: all ranks of the worker are beyond a busy threshold. Each rank is a member. The
// result is nil when no worker is overloaded, and valid until the next call.
func (o *overloads) current(loads *load.Columns) []bool {
	if o.thresholds.never() {
		return nil
	}
	any, now := false, o.now()
	list := o.members.List // ordered by worker, so the ranks of a worker are neighbours
	for first := 0; first < len(list); {
		end, all := first, true
		for ; end < len(list) && list[end].Worker.ID == list[first].Worker.ID; end++ {
			// rankOverloaded comes first, because every call updates decodeBusy.
			all = o.rankOverloaded(end, loads, now) && all
		}
		for m := first; m < end; m++ {
			o.overloaded[m] = all
		}
		any = any || all
		first = end
	}
	if !any {
		return nil
	}
	return o.overloaded
}

// rankOverloaded reports whether member m, one rank of a worker, is beyond a busy threshold,
// and updates decodeBusy[m]. Decode load counts the blocks of booked requests, or the blocks
// that the worker reports in use if those are more.
func (o *overloads) rankOverloaded(m int, loads *load.Columns, now time.Time) bool {
	t, w := &o.thresholds, &o.workers[m]
	if t.DecodeBlocks != nil && w.TotalBlocks > 0 {
		bound := *t.DecodeBlocks * float64(w.TotalBlocks)
		if o.usedBlocks[m] > 0 && now.Sub(o.reportedAt[m]) > usedTimeout {
			o.usedBlocks[m] = 0 // the report is stale
		}
		used := max(float64(loads.ActiveBlocks[m]), float64(o.usedBlocks[m]))
		// At the bound the state stays as it was. But with a bound of 0 a worker without blocks
		// is not busy, or it would stay busy for ever.
		if used > bound {
			o.decodeBusy[m] = true
		} else if used < bound || used == 0 {
			o.decodeBusy[m] = false
		}
	} else {
		o.decodeBusy[m] = false
	}
	return o.decodeBusy[m] || loads.PrefillTokens[m] > prefillLimit(t.PrefillTokens, t.PrefillFraction, w)
}
