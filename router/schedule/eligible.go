package schedule

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
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

// filter is what a request requires of its worker.
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
	// overload says for each member whether its worker is overloaded. Nil means
	// that none is.
	overload []bool
}

// eligible appends to dst, which is empty, the members that pass the filter,
// ascending. Nil means all members. The error says why there is none.
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

// BusyThresholds say when a worker gets no requests. A nil threshold is ignored.
// With all nil no worker is overloaded.
type BusyThresholds struct {
	// DecodeBlocks is a fraction, 0..1, of the worker's blocks. A worker becomes
	// overloaded when its active requests keep more blocks, or the worker reports
	// more in use. It stays overloaded until both are below. The threshold has no
	// effect on a worker of unknown capacity.
	DecodeBlocks *float64
	// PrefillTokens bounds the prompt tokens that a worker has still to compute.
	PrefillTokens *int64
	// PrefillFraction bounds the same as a multiple, at least 0, of what the worker
	// computes in a step.
	PrefillFraction *float64
}

// unknownBatch stands for the tokens of a step of a worker that does not say.
const unknownBatch = 10_000_000

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

// prefillLimit returns how many pending prompt tokens a worker may have, given a
// bound in tokens and a bound as a multiple of a step. A nil bound is ignored.
func prefillLimit(tokens *int64, fraction *float64, w *WorkerConfig) int64 {
	limit := int64(math.MaxInt64)
	if tokens != nil {
		limit = *tokens
	}
	if fraction != nil {
		batch := float64(w.MaxBatchedTokens)
		if w.MaxBatchedTokens == 0 {
			batch = unknownBatch
		}
		// A float this large does not fit into an int64.
		if part := *fraction * batch; part < 1<<62 {
			limit = min(limit, int64(part))
		}
	}
	return limit
}

// overloads knows which members are beyond the thresholds. It follows a list of
// members like a load.Account.
type overloads struct {
	thresholds BusyThresholds
	members    *index.Members
	workers    []WorkerConfig
	now        func() time.Time
	// used is the number of blocks that a member has reported, heard the time of
	// the report, latched whether the member is beyond its decode threshold, over
	// whether its worker is overloaded.
	used    []uint64
	heard   []time.Time
	latched []bool
	over    []bool
}

// usedTimeout is how long a report of used blocks counts. The worker may have
// fallen silent.
const usedTimeout = time.Minute

func newOverloads(t BusyThresholds, now func() time.Time) *overloads {
	return &overloads{thresholds: t, members: &index.Members{}, now: now}
}

// align follows m. What is known of its workers stays known.
func (o *overloads) align(m *index.Members, workers []WorkerConfig) {
	old, used, heard, latched := o.members, o.used, o.heard, o.latched
	o.members, o.workers = m, workers
	o.used, o.heard = make([]uint64, len(m.List)), make([]time.Time, len(m.List))
	o.latched, o.over = make([]bool, len(m.List)), make([]bool, len(m.List))
	for i, w := range old.List {
		if at, ok := m.Find(w.Worker); ok {
			o.used[at], o.heard[at], o.latched[at] = used[i], heard[i], latched[i]
		}
	}
}

// report notes how many blocks a worker uses, and reports whether the worker is a
// member.
func (o *overloads) report(w kv.Worker, used uint64) bool {
	at, ok := o.members.Find(w)
	if ok {
		o.used[at], o.heard[at] = used, o.now()
	}
	return ok
}

// current returns for each member whether its worker is overloaded. A worker is
// overloaded when all its ranks are. current returns nil when no worker is.
func (o *overloads) current(loads *load.Columns) []bool {
	if o.thresholds.never() {
		return nil
	}
	any, now := false, o.now()
	list := o.members.List
	for first := 0; first < len(list); {
		end, all := first, true
		for ; end < len(list) && list[end].Worker.ID == list[first].Worker.ID; end++ {
			// Every rank is checked, because the check updates its latch.
			all = o.rank(end, loads, now) && all
		}
		for m := first; m < end; m++ {
			o.over[m] = all
		}
		any = any || all
		first = end
	}
	if !any {
		return nil
	}
	return o.over
}

// rank reports whether one rank is beyond a threshold.
func (o *overloads) rank(m int, loads *load.Columns, now time.Time) bool {
	t, w := &o.thresholds, &o.workers[m]
	if t.DecodeBlocks != nil && w.TotalBlocks > 0 {
		bound := *t.DecodeBlocks * float64(w.TotalBlocks)
		if o.used[m] > 0 && now.Sub(o.heard[m]) > usedTimeout {
			o.used[m] = 0
		}
		most := max(float64(loads.ActiveBlocks[m]), float64(o.used[m]))
		if most > bound {
			o.latched[m] = true
		} else if most < bound || most == 0 {
			o.latched[m] = false
		}
	} else {
		o.latched[m] = false
	}
	return o.latched[m] || loads.PrefillTokens[m] > prefillLimit(t.PrefillTokens, t.PrefillFraction, w)
}
