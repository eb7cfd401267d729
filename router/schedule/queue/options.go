package queue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Options say when requests wait and how many. With the zero value no request waits.
type Options struct {
	// Class is the only class of a queue without a Profile. Its name is "default", and its Quantum
	// does not matter.
	Class
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

// Limits are limits per worker: each is multiplied by the number of workers. A request
// is refused once a limit is reached, so the last request may exceed it. 0 is no limit.
type Limits struct {
	// Requests bounds the waiting requests, Tokens their prompt tokens, and CachedTokens the
	// tokens that a worker has cached.
	Requests, Tokens, CachedTokens int
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
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
func (o *Options) profile() *Profile {
	if o.Profile != nil {
		return o.Profile
	}
	only := o.Class
	only.Name, only.Family, only.Bucket, only.Quantum = "default", "default", "all", 1
	return &Profile{DefaultFamily: "default", Buckets: []Bucket{{0, "all"}}, Classes: []Class{only}}
}

// UnknownBatch is the assumed number of tokens in one step of a worker whose number is unknown.
const UnknownBatch = 10_000_000

// withDefaults returns o with defaults in place of zero bounds.
func (o Options) withDefaults() Options {
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
func (o *Options) Enabled() bool {
	if o.Profile == nil {
		return o.Class.Enabled()
	}
	return slices.ContainsFunc(o.Profile.Classes, func(c Class) bool { return c.Enabled() })
}

// ErrRejected says that a request would have to wait and the queue is full. The error
// that wraps it is a *Rejection.
var ErrRejected = errors.New("queue is full")

// Limit names a limit of the queue.
type Limit string

// Queue limits, as clients see them.
const (
	LimitRequests     Limit = "requests"
	LimitTokens       Limit = "raw_isl_tokens"
	LimitCachedTokens Limit = "cached_tokens"
	LimitAllowed      Limit = "allowed_worker_ids"
)

// Rejection says which limit refused a request.
type Rejection struct {
	Class string `json:"policy_class"`
	Kind  Limit  `json:"limit_kind"`
	// Current is the amount that waits, Limit the amount that may wait.
	Current int `json:"current"`
	Limit   int `json:"limit"`
}

// Error names the limit and both amounts.
func (r *Rejection) Error() string {
	return fmt.Sprintf("%v: %s: %d wait, the limit is %d", ErrRejected, r.Kind, r.Current, r.Limit)
}

// Unwrap returns ErrRejected.
func (r *Rejection) Unwrap() error { return ErrRejected }
