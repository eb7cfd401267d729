package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// QueueOptions say when requests wait and how many. With the zero value no request waits.
type QueueOptions struct {
	// QueueClass is the only class of a queue without a Profile. Its name is "default", and its Quantum
	// does not matter.
	QueueClass
	// Profile has several classes. Nil is none.
	Profile *Profile
	// MaxWait is how long a request waits at most; then it goes to the best worker, busy or not. The
	// clock is the caller's. 0 is no bound.
	MaxWait time.Duration
	// MaxPending bounds the waiting requests; 0 means 16,384. MaxTokens bounds the sum of
	// their prompts; 0 means 1<<28. A request is refused once a bound is reached.
	MaxPending, MaxTokens int
	// MaxAllowed bounds the sum of the sizes of the sets of allowed workers; 0 means 1<<20.
	// Requests of one lane count once.
	MaxAllowed int
}

// QueueLimits are limits per worker: each is multiplied by the number of workers. A request
// is refused once a limit is reached, so the last request may exceed it. 0 is no limit.
type QueueLimits struct {
	// Requests bounds the waiting requests, Tokens their prompt tokens, and CachedTokens the
	// tokens that a worker has cached.
	Requests, Tokens, CachedTokens int
}

// Validate reports the first option that is out of range.
func (o *QueueOptions) Validate() error {
	p := o.profile()
	if o.Profile == nil {
		if err := p.Classes[0].validate(); err != nil {
			return fmt.Errorf("queue %w", err)
		}
	} else if err := p.Validate(); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	if o.MaxWait < 0 {
		return fmt.Errorf("queue max wait: %v is negative", o.MaxWait)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max pending requests", o.MaxPending},
		{"max pending tokens", o.MaxTokens},
		{"max allowed workers", o.MaxAllowed},
	} {
		if f.value < 0 {
			return fmt.Errorf("queue %s: %d is negative", f.name, f.value)
		}
	}
	return nil
}

// profile returns the classes of the queue: those of o.Profile, or the only one.
func (o *QueueOptions) profile() *Profile {
	if o.Profile != nil {
		return o.Profile
	}
	only := o.QueueClass
	only.Name, only.Family, only.Bucket, only.Quantum = "default", "default", "all", 1
	return &Profile{DefaultFamily: "default", Buckets: []Bucket{{0, "all"}}, Classes: []QueueClass{only}}
}

// withDefaults returns o with defaults in place of zero bounds.
func (o QueueOptions) withDefaults() QueueOptions {
	p := *o.profile()
	p.Classes = slices.Clone(p.Classes)
	for k := range p.Classes {
		if c := &p.Classes[k]; c.Deadline == 0 {
			c.Deadline = defaultDeadline
		}
	}
	o.Profile = &p
	o.MaxPending = cmp.Or(o.MaxPending, 1<<14)
	o.MaxTokens = cmp.Or(o.MaxTokens, 1<<28)
	o.MaxAllowed = cmp.Or(o.MaxAllowed, 1<<20)
	return o
}

// Enabled reports whether requests of some class may wait.
func (o *QueueOptions) Enabled() bool {
	if o.Profile == nil {
		return o.QueueClass.Enabled()
	}
	return slices.ContainsFunc(o.Profile.Classes, func(c QueueClass) bool { return c.Enabled() })
}

// ErrQueueRejected says that a request would have to wait and the queue is full. The error
// that wraps it is a *QueueRejection.
var ErrQueueRejected = errors.New("queue is full")

// QueueLimit names a limit of the queue.
type QueueLimit string

// Queue limits, as clients see them.
const (
	LimitRequests     QueueLimit = "requests"
	LimitTokens       QueueLimit = "raw_isl_tokens"
	LimitCachedTokens QueueLimit = "cached_tokens"
	LimitAllowed      QueueLimit = "allowed_worker_ids"
)

// QueueRejection says which limit refused a request.
type QueueRejection struct {
	Class string     `json:"policy_class"`
	Kind  QueueLimit `json:"limit_kind"`
	// Current is the amount that waits, Limit the amount that may wait.
	Current int `json:"current"`
	Limit   int `json:"limit"`
}

// Error names the limit and both amounts.
func (r *QueueRejection) Error() string {
	return fmt.Sprintf("%v: %s: %d wait, the limit is %d", ErrQueueRejected, r.Kind, r.Current, r.Limit)
}

// Unwrap returns ErrQueueRejected.
func (r *QueueRejection) Unwrap() error { return ErrQueueRejected }
