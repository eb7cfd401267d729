package queue

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/fairshare"
)

// Discipline orders the waiting requests of a class that have the same StrictPriority.
type Discipline uint8

const (
	// FCFS serves the earliest arrival first. PriorityJump moves the arrival back.
	FCFS Discipline = iota
	// LCFS serves the latest arrival first.
	LCFS
	// WSPT serves the shortest prompt first, by the tokens that no worker has cached. 1 plus
	// PriorityJump is the request's weight.
	WSPT
	// EDF serves the earliest deadline first. PriorityJump moves the deadline forward.
	EDF
)

// Disciplines are the names of the disciplines, in their order.
var Disciplines = []string{"fcfs", "lcfs", "wspt", "edf"}

// String returns the name of the discipline.
func (d Discipline) String() string {
	if int(d) < len(Disciplines) {
		return Disciplines[d]
	}
	return fmt.Sprintf("discipline(%d)", uint8(d))
}

// score returns the order of an item: higher goes first.
func (d Discipline) score(i *Item, c *Class) float64 {
	jump := max(0, i.PriorityJump)
	switch d {
	case LCFS:
		return jump + i.Arrival
	case WSPT:
		return (1 + jump) / float64(i.Uncached())
	case EDF:
		deadline := i.Deadline
		if deadline == 0 {
			deadline = c.Deadline
		}
		return jump - i.Arrival - deadline.Seconds()
	}
	return jump - i.Arrival
}

// Uncached returns the prompt tokens that no worker has cached, at least 1.
func (i *Item) Uncached() int { return max(1, i.Tokens-i.CachedTokens) }

// Class says how the requests of one class wait. The classes of a queue share the workers by
// deficit round robin: while several have requests that a free worker may serve, the uncached tokens
// that they send have the ratio of their quanta.
type Class struct {
	// Name is for rejections and metrics. Family and Bucket place a class in the matrix of a Profile.
	Name, Family, Bucket string
	Discipline           Discipline
	// Deadline is the time to a request's deadline for requests that name none. Only EDF uses it.
	Deadline time.Duration
	// Quantum is the tokens per round, 1..MaxQuantum.
	Quantum int
	// A worker is busy for the class while its pending prefill tokens exceed Threshold times
	// MaxBatchedTokens, or exceed ThresholdTokens. Nil is no threshold. Without both no request of the
	// class waits.
	Threshold       *float64
	ThresholdTokens *int64
	// Limits refuse requests of the class.
	Limits Limits
}

// MaxQuantum bounds Class.Quantum.
const MaxQuantum = 1 << 30

// defaultDeadline is the Deadline of a class that names none.
const defaultDeadline = 10 * time.Second

// Enabled reports whether requests of the class may wait.
func (c *Class) Enabled() bool { return c.Threshold != nil || c.ThresholdTokens != nil }

// Busy reports whether requests of the class wait rather than go to a worker with that many pending
// prefill tokens. maxBatchedTokens is WorkerConfig.MaxBatchedTokens, 0 when unknown. A worker with an
// unknown value is practically never busy by Threshold.
func (c *Class) Busy(prefillTokens int64, maxBatchedTokens uint64) bool {
	if c.ThresholdTokens != nil && prefillTokens > *c.ThresholdTokens {
		return true
	}
	if maxBatchedTokens == 0 {
		maxBatchedTokens = UnknownBatch
	}
	return c.Threshold != nil && float64(prefillTokens) > *c.Threshold*float64(maxBatchedTokens)
}

// validate reports the first field that is out of range.
func (c *Class) validate() error {
	if t := c.Threshold; t != nil && (!(*t >= 0) || math.IsInf(*t, 0)) {
		return fmt.Errorf("threshold: %v is not a finite number of at least 0", *t)
	}
	if t := c.ThresholdTokens; t != nil && *t < 0 {
		return fmt.Errorf("threshold tokens: %d is negative", *t)
	}
	if int(c.Discipline) >= len(Disciplines) {
		return fmt.Errorf("discipline: %s is not one of 0..%d", c.Discipline, len(Disciplines)-1)
	}
	if c.Quantum < 1 || c.Quantum > MaxQuantum {
		return fmt.Errorf("quantum: %d is not in 1..%d", c.Quantum, MaxQuantum)
	}
	if c.Deadline < 0 {
		return fmt.Errorf("deadline: %v is negative", c.Deadline)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"request", c.Limits.Requests}, {"token", c.Limits.Tokens}, {"cached token", c.Limits.CachedTokens},
	} {
		if f.value < 0 {
			return fmt.Errorf("%s limit per worker: %d is negative", f.name, f.value)
		}
	}
	return nil
}

// Bucket names the requests with at least MinTokens uncached tokens, up to the next bucket.
type Bucket struct {
	MinTokens int
	Name      string
}

// Profile sorts requests into classes: a matrix of the family that a request names by the bucket of
// its uncached tokens, and explicit classes beside the matrix.
type Profile struct {
	// DefaultFamily is the family of a request that names none, or one that is unknown.
	DefaultFamily string
	// Buckets begin at 0 and rise.
	Buckets []Bucket
	// Classes with a Family and a Bucket are the matrix: exactly one for each family and bucket. Classes
	// with neither are explicit.
	Classes []Class
}

// MaxClasses bounds the classes of a Profile.
const MaxClasses = 256

// Validate reports the first field that is out of range, and a matrix with a hole.
func (p *Profile) Validate() error {
	if n := len(p.Classes); n == 0 || n > MaxClasses {
		return fmt.Errorf("policy_classes: %d classes, want 1..%d", n, MaxClasses)
	}
	for k, b := range p.Buckets {
		switch {
		case k == 0 && b.MinTokens != 0:
			return fmt.Errorf("uncached_isl_buckets: the first begins at %d tokens, want 0", b.MinTokens)
		case k > 0 && b.MinTokens <= p.Buckets[k-1].MinTokens:
			return fmt.Errorf("uncached_isl_buckets: bucket %q begins at %d tokens, want more than %d", b.Name, b.MinTokens, p.Buckets[k-1].MinTokens)
		}
	}
	names, cells, families := make(map[string]bool), make(map[[2]string]bool), make(map[string]bool)
	for k := range p.Classes {
		c := &p.Classes[k]
		cell := [2]string{c.Family, c.Bucket}
		switch {
		case names[c.Name]:
			return fmt.Errorf("policy_classes: class %q is there twice", c.Name)
		case (c.Family == "") != (c.Bucket == ""):
			return fmt.Errorf("policy class %q: policy_family %q and cache_bucket %q: want both or neither", c.Name, c.Family, c.Bucket)
		case c.Family != "" && cells[cell]:
			return fmt.Errorf("policy class %q: family %q has another class for bucket %q", c.Name, c.Family, c.Bucket)
		case c.Family != "" && !slices.ContainsFunc(p.Buckets, func(b Bucket) bool { return b.Name == c.Bucket }):
			return fmt.Errorf("policy class %q: cache_bucket %q is not one of uncached_isl_buckets", c.Name, c.Bucket)
		}
		if err := c.validate(); err != nil {
			return fmt.Errorf("policy class %q %w", c.Name, err)
		}
		names[c.Name], cells[cell] = true, true
		families[c.Family] = families[c.Family] || c.Family != ""
	}
	for k := range p.Classes {
		for _, b := range p.Buckets {
			if f := p.Classes[k].Family; f != "" && !cells[[2]string{f, b.Name}] {
				return fmt.Errorf("policy_classes: family %q has no class for bucket %q", f, b.Name)
			}
		}
	}
	if !families[p.DefaultFamily] {
		return fmt.Errorf("default_policy_family: %q is not the family of a class", p.DefaultFamily)
	}
	return nil
}

// Classify returns the number of the class for a request that names a family or an explicit class, and
// has that many uncached tokens. A name that is neither counts as DefaultFamily, so that no request
// can choose a class of the matrix by its name. p is valid.
func (p *Profile) Classify(name string, uncached int) (class int) {
	family := p.DefaultFamily
	for k := range p.Classes {
		if c := &p.Classes[k]; c.Family == "" && c.Name == name {
			return k
		} else if c.Family == name && name != "" {
			family = name
		}
	}
	bucket := ""
	for _, b := range p.Buckets {
		if uncached >= b.MinTokens {
			bucket = b.Name
		}
	}
	return slices.IndexFunc(p.Classes, func(c Class) bool { return c.Family == family && c.Bucket == bucket })
}

// classQueue is the waiting requests of one class.
type classQueue struct {
	*Class
	number int
	// awake are the lanes that may have a free worker, ordered by their first requests.
	awake laneHeap
	stats classStats
	// share is in Queue.ring while requests of the class wait.
	share fairshare.Member[*classQueue]
	// first is the request that goes next, nil while no worker is free for any. It is valid during Next.
	first *Item
}

// classStats are gauges of the waiting requests of a class.
type classStats struct{ pending, tokens, cachedTokens int }

// findFirst sets c.first. Lanes whose workers are all busy go to sleep.
func (c *classQueue) findFirst(q *Queue, busy func(*Item) bool) {
	c.first = nil
	for len(c.awake) > 0 {
		i := c.awake[0].waiting[0]
		if !busy(i) {
			c.first = i
			return
		}
		q.sleep(c.awake[0])
	}
}

// cost returns what the class is charged for its next request, 0 without one that may go.
func (c *classQueue) cost() int {
	if c.first == nil {
		return 0
	}
	return c.first.Uncached()
}
