package demo

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/lab/workload"
)

// limits bound what the demo waits for, in real time.
type limits struct {
	// call bounds an answer of router or engine, generate an engine's answer to a
	// prompt, from the request to the last token.
	call, generate time.Duration
	// settle bounds the wait for everything to come to rest after the last answer.
	settle time.Duration
	// whole bounds the demo from its first process to its last figure.
	whole time.Duration
}

// maxWorkloadTime bounds what a workload may add to the limits.
const maxWorkloadTime = 30 * 24 * time.Hour

// limitsFor are the limits of a demo with these requests at o's speed. An engine
// may need a minute for one answer, and besides as long as if it had to compute
// every prompt of the workload first, alone and without a cache. The whole may
// need a quarter of an hour, and besides three times as long as the arrivals and
// one such engine take in every run. Limits that o sets itself win.
func limitsFor(o *Options, requests []workload.Request) limits {
	compute := float64(workload.InputTokens(requests)) / float64(o.PrefillRate)
	arrivals, output := 0.0, 0
	for i := range requests {
		arrivals = max(arrivals, requests[i].At.Seconds())
		output = max(output, requests[i].OutputTokens)
	}
	compute += float64(output) * stepBase.Seconds()
	runs := float64(len(variants(o.OnlyOurs)))
	return limits{
		call:     cmp.Or(o.limits.call, 10*time.Second),
		generate: cmp.Or(o.limits.generate, time.Minute+o.realTime(compute)),
		settle:   cmp.Or(o.limits.settle, 15*time.Second),
		whole:    cmp.Or(o.limits.whole, 15*time.Minute+o.realTime(3*runs*(compute+arrivals))),
	}
}

// watch is ctx, but ends after limit as well, with a cause that says so.
func watch(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("demo: not done within %s: something hangs", limit))
}

// realTime is how long so many simulated seconds take, at most maxWorkloadTime.
func (o *Options) realTime(simulated float64) time.Duration {
	s := min(simulated/o.SpeedUp, maxWorkloadTime.Seconds())
	return time.Duration(s * float64(time.Second))
}
