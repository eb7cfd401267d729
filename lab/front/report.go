package front

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
)

// quantile returns the q-quantile of values, which it sorts; 0 without values.
func quantile(values []int64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	at := int(math.Ceil(q*float64(len(values)))) - 1
	return float64(values[min(max(at, 0), len(values)-1)])
}

// row is a line of the table: medians of the rounds.
type row struct {
	name                 string
	exact, peer, routed  bool
	firstP50, firstP99   float64 // ms
	chunkP50, chunkP99   float64 // us
	cpu, render, renders float64 // us, us, calls
	streams              float64 // MB for 1,000 streams
	highest              float64 // requests a second
	cached, failed       float64 // shares
	note                 string
}

// rowOf returns the table's row of a contender: the medians of its rounds.
func rowOf(c *contender, rounds []figures) *row {
	median := func(of func(*figures) float64) float64 {
		var all []float64
		for i := range rounds {
			all = append(all, of(&rounds[i]))
		}
		slices.Sort(all)
		return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
	}
	const ms, us = 1e6, 1e3
	r := &row{
		name: c.name, exact: c.exact, peer: c.peer, routed: c.command != nil,
		firstP50: median(func(f *figures) float64 { return quantile(f.load.firsts, 0.5) / ms }),
		firstP99: median(func(f *figures) float64 { return quantile(f.load.firsts, 0.99) / ms }),
		chunkP50: median(func(f *figures) float64 { return quantile(f.load.chunks, 0.5) / us }),
		chunkP99: median(func(f *figures) float64 { return quantile(f.load.chunks, 0.99) / us }),
		cpu:      median(func(f *figures) float64 { return f.cpuNanos / us }),
		render:   median(func(f *figures) float64 { return f.renderNanos / us }),
		renders:  median(func(f *figures) float64 { return f.renders }),
		cached:   median(func(f *figures) float64 { return f.cachedShare }),
		failed:   median(func(f *figures) float64 { return f.load.errorShare() }),
	}
	for i := range rounds {
		// One round measures these.
		r.streams = max(r.streams, rounds[i].streamsBytes*1000/1e6)
		r.highest = max(r.highest, rounds[i].highest)
		if rounds[i].note != "" {
			r.note = rounds[i].note
		}
	}
	return r
}

const (
	headFormat = "%-24s %18s %18s %12s %14s %10s %9s %8s %8s\n"
	rowFormat  = "%-24s %8.2f / %7.2f %8.0f / %7.0f %12.0f %6.0f (%4.2f) %10.1f %9.0f %7.1f%% %7.2f%%"
)

// String implements fmt.Stringer.
func (r *row) String() string {
	s := fmt.Sprintf(rowFormat, r.name, r.firstP50, r.firstP99, r.chunkP50, r.chunkP99, r.cpu, r.render, r.renders, r.streams, r.highest, 100*r.cached, 100*r.failed)
	if r.note != "" {
		s += "  " + r.note
	}
	return s
}

// lines returns the table for people and the last line for scripts. That line compares our router
// with the best peer of each figure, whether or not the peer knew the caches. A peer with 1 %
// errors or more is left out.
func lines(o *Options, chosen []contender, rounds map[string][]figures) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%g requests/s of %d chunks %s apart, %d stubs, medians of %d rounds of %s; router on one core, load and stubs on another, %d here\n",
		o.Rate, chunks, chunkDelay, stubs, o.Rounds, o.Duration, runtime.NumCPU())
	fmt.Fprintf(&b, headFormat, "", "first byte ms", "chunk us", "router us", "tokens us (n)", "MB/1k", "highest/s", "cached", "errors")
	var ours *row
	var peers []*row
	for i := range chosen {
		if why := o.missing(&chosen[i]); why != "" {
			fmt.Fprintf(&b, "%-24s not run: %s\n", chosen[i].name, why)
			continue
		}
		r := rowOf(&chosen[i], rounds[chosen[i].name])
		fmt.Fprintln(&b, r)
		switch {
		case r.name == "blockyard":
			ours = r
		case r.peer && r.failed < sweepErrors:
			peers = append(peers, r)
		}
	}
	if ours != nil {
		fmt.Fprintf(&b, "bench-front: added_ttfb_p99_ms=%.2f cpu_us_per_request=%.0f best_peer_cpu_us=%.0f best_peer_p99_ms=%.2f streams_mb_per_1k=%.1f\n",
			ours.firstP99, ours.total(), best(peers, (*row).total), best(peers, func(r *row) float64 { return r.firstP99 }), ours.streams)
	}
	return b.String()
}

// total is the processor time of a request wherever it is spent.
func (r *row) total() float64 { return r.cpu + r.render }

// best returns the least value of a figure among the rows; 0 without rows.
func best(rows []*row, of func(*row) float64) float64 {
	least := 0.0
	for i, r := range rows {
		if v := of(r); i == 0 || v < least {
			least = v
		}
	}
	return least
}
