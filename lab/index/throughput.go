package index

import (
	"time"

	"github.com/blockyard-ai/blockyard/router/index"
)

// measureEvents applies all events, then checks what the index holds.
func (r *replay) measureEvents() (Figures, error) {
	h := r.log.Header()
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	m := begin()
	if err := apply(x, r.events); err != nil {
		return nil, err
	}
	drain(x)
	f := m.end()
	f[figMops] = float64(h.Stored+h.Removed) / f[figSeconds] / 1e6
	return f, r.checkHeld(x)
}

// measureMixed applies events and asks queries in the order of the log.
func (r *replay) measureMixed() (Figures, error) {
	h := r.log.Header()
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	var matches index.Matches
	var got sums
	m := begin()
	for _, n := range r.order {
		if n < 0 {
			x.Match(&matches, r.queries[^n], index.Continuation)
			got.add(&matches)
		} else if err := x.Apply(&r.events[n]); err != nil {
			return nil, err
		}
	}
	drain(x)
	f := m.end()
	f[figMops] = float64(h.Stored+h.Removed+h.Queried) / f[figSeconds] / 1e6
	return f, got.check("queries in order", h.Answers.Score, h.Answers.Best)
}

// measureLookups times each query, in the order of the log and then against the
// last state.
func (r *replay) measureLookups() (Figures, error) {
	h := r.log.Header()
	x, err := newIndex(h.Engines)
	if err != nil {
		return nil, err
	}
	var matches index.Matches
	var got sums
	ns := make([]uint32, 0, len(r.queries))
	ask := func(query int32) {
		start := time.Now()
		x.Match(&matches, r.queries[query], index.Continuation)
		ns = append(ns, since(start))
		got.add(&matches)
	}
	m := begin()
	for _, n := range r.order {
		if n < 0 {
			ask(^n)
		} else if err := x.Apply(&r.events[n]); err != nil {
			return nil, err
		}
	}
	f := m.end()
	if err := got.check("timed queries in order", h.Answers.Score, h.Answers.Best); err != nil {
		return nil, err
	}
	f.latencies("", ns)
	got, ns = sums{}, ns[:0]
	for i := range r.queries {
		ask(int32(i))
	}
	f.latencies("final_", ns)
	return f, got.check("queries after the last record", h.Answers.FinalScore, h.Answers.FinalBest)
}

// Names of figures of some parts.
const (
	figMops = "mops" // millions of blocks named by events and queries, a second
	figP50  = "p50_us"
	figP99  = "p99_us"
	figMost = "max_us"
	figN    = "n" // how many times were measured
)

// latencies adds the quantiles of ns, which it sorts, under names that begin with
// prefix.
func (f Figures) latencies(prefix string, ns []uint32) {
	q := quantiles(ns, 0.5, 0.99, 1)
	f[prefix+figP50], f[prefix+figP99], f[prefix+figMost], f[prefix+figN] = q[0], q[1], q[2], float64(len(ns))
}
