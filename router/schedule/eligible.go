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

// BusyThresholds say from when on a worker gets no requests. What is nil is not
// looked at; with all nil no worker is ever overloaded.
type BusyThresholds struct {
	// DecodeBlocks is a part, 0..1, of the worker's blocks: the worker becomes
	// overloaded when its running requests keep more, or it has reported that more
	// are in use, and ceases to be when both are below. It has no effect on a
	// worker whose capacity is not known.
	DecodeBlocks *float64
	// PrefillTokens bounds the prompt tokens that a worker has still to compute.
	PrefillTokens *int64
	// PrefillFraction bounds them as a multiple, at least 0, of what the worker
	// computes in a step.
	PrefillFraction *float64
}

// unknownBatch stands for the tokens of a step when a worker does not say.
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

// prefillLimit is how many pending prompt tokens are not too many for a worker,
// given a bound in tokens and one as a multiple of a step. Nil bounds nothing.
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
	// used is what a member has reported to use, and heard when; latched whether its decode
	// threshold was passed; over whether its worker is overloaded.
	used    []uint64
	heard   []time.Time
	latched []bool
	over    []bool
}

// usedTimeout is how long it counts what a worker has reported to use: it may have
// fallen silent.
const usedTimeout = time.Minute

func newOverloads(t BusyThresholds, now func() time.Time) *overloads {
	return &overloads{thresholds: t, members: &index.Members{}, now: now}
}

// align follows m; what is known of its workers stays known.
func (o *overloads) align(m *index.Members, workers []WorkerConfig) {
	former, used, heard, latched := o.members, o.used, o.heard, o.latched
	o.members, o.workers = m, workers
	o.used, o.heard = make([]uint64, len(m.List)), make([]time.Time, len(m.List))
	o.latched, o.over = make([]bool, len(m.List)), make([]bool, len(m.List))
	for i, w := range former.List {
		if at, ok := m.Find(w.Worker); ok {
			o.used[at], o.heard[at], o.latched[at] = used[i], heard[i], latched[i]
		}
	}
}

// report notes how many blocks a worker uses. It reports whether the worker is a
// member.
func (o *overloads) report(w kv.Worker, used uint64) bool {
	at, ok := o.members.Find(w)
	if ok {
		o.used[at], o.heard[at] = used, o.now()
	}
	return ok
}

// current says for each member whether its worker is overloaded, which is so
// when all its ranks are. It is nil when none is.
func (o *overloads) current(loads *load.Columns) []bool {
	if o.thresholds.never() {
		return nil
	}
	any, now := false, o.now()
	list := o.members.List
	for first := 0; first < len(list); {
		end, all := first, true
		for ; end < len(list) && list[end].Worker.ID == list[first].Worker.ID; end++ {
			// Every rank is looked at, because looking moves its latch.
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
