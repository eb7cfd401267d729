package schedule

import (
	"errors"
	"fmt"
	"math"
)

// QueueOptions say when requests wait and how many may. The zero value lets none
// wait.
type QueueOptions struct {
	// Threshold makes a worker busy while its pending prefill tokens exceed this
	// fraction of what it computes in a step; it is above 0, nil sets none.
	// ThresholdTokens makes it busy while they exceed that number. With both,
	// either is enough; with neither no request waits.
	Threshold       *float64
	ThresholdTokens *int64
	// MaxPending bounds the waiting requests, and MaxTokens the sum of their prompts:
	// nothing is added once it is reached. 0 means 16,384, and 1<<28.
	MaxPending, MaxTokens int
	// MaxAllowed bounds the sum of the sizes of the sets that requests are limited to,
	// where requests of the same set count once; 0 means 1<<20.
	MaxAllowed int
	// Limits turn requests away earlier.
	Limits QueueLimits
}

// QueueLimits are per worker: what waits is held against them times the number
// of workers. Nothing is added once a limit is reached; the request that crosses
// it was the last. 0 sets no limit.
type QueueLimits struct {
	// Requests, and the sums of their prompt tokens and of the tokens of these that
	// some worker has cached.
	Requests, Tokens, CachedTokens int
}

// Validate reports the first option that is out of range.
func (o *QueueOptions) Validate() error {
	if t := o.Threshold; t != nil && (!(*t > 0) || math.IsInf(*t, 0)) {
		return fmt.Errorf("queue threshold: %v is not a finite number above 0", *t)
	}
	if t := o.ThresholdTokens; t != nil && *t < 0 {
		return fmt.Errorf("queue threshold tokens: %d is negative", *t)
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"max pending requests", o.MaxPending},
		{"max pending tokens", o.MaxTokens},
		{"max allowed workers", o.MaxAllowed},
		{"request limit per worker", o.Limits.Requests},
		{"token limit per worker", o.Limits.Tokens},
		{"cached token limit per worker", o.Limits.CachedTokens},
	} {
		if f.value < 0 {
			return fmt.Errorf("queue %s: %d is negative", f.name, f.value)
		}
	}
	return nil
}

func (o QueueOptions) withDefaults() QueueOptions {
	if o.MaxPending == 0 {
		o.MaxPending = 1 << 14
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 1 << 28
	}
	if o.MaxAllowed == 0 {
		o.MaxAllowed = 1 << 20
	}
	return o
}

// Enabled reports whether requests may wait at all.
func (o *QueueOptions) Enabled() bool { return o.Threshold != nil || o.ThresholdTokens != nil }

// Busy reports whether a worker with that many prefill tokens pending is busy.
// maxBatchedTokens is what it computes in a step, 0 when unknown; then it is in
// effect never busy by the fraction.
func (o *QueueOptions) Busy(prefillTokens int64, maxBatchedTokens uint64) bool {
	if o.ThresholdTokens != nil && prefillTokens > *o.ThresholdTokens {
		return true
	}
	if maxBatchedTokens == 0 {
		maxBatchedTokens = unknownBatch
	}
	return o.Threshold != nil && float64(prefillTokens) > *o.Threshold*float64(maxBatchedTokens)
}

// ErrQueueRejected: the request would have to wait, and too many wait already.
// The error that wraps it is a *QueueRejection.
var ErrQueueRejected = errors.New("queue is full")

// QueueLimit is what a queue has too much of.
type QueueLimit string

// Queue limits, as clients see them.
const (
	LimitRequests     QueueLimit = "requests"
	LimitTokens       QueueLimit = "raw_isl_tokens"
	LimitCachedTokens QueueLimit = "cached_tokens"
	LimitAllowed      QueueLimit = "allowed_worker_ids"
)

// QueueRejection says which limit turned a request away.
type QueueRejection struct {
	Kind QueueLimit `json:"limit_kind"`
	// Current is how much waits, Limit how much may.
	Current int `json:"current"`
	Limit   int `json:"limit"`
}

// Error names the limit, what waits and what may.
func (r *QueueRejection) Error() string {
	return fmt.Sprintf("%v: %s: %d wait, the limit is %d", ErrQueueRejected, r.Kind, r.Current, r.Limit)
}

// Unwrap is ErrQueueRejected.
func (r *QueueRejection) Unwrap() error { return ErrQueueRejected }
