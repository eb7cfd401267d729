package disk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// Result is what a run found.
type Result struct {
	// Ceiling is what disk throughput was compared with: "fio" or "raw".
	Ceiling string
	// Comparisons are in the order in which they were made.
	Comparisons []Comparison
	// Blocks is how many blocks were registered for what follows.
	Blocks int
	// Open is how many seconds it took to open the pool on them.
	Open Summary
	// Lookups are those with nothing else going on.
	Lookups Lookups
	Pauses  Pauses
}

// Run measures everything, prints tables as they come to be, and cleans up. It
// fails when there is not enough room, a block is lost or wrong, or ctx ends.
func Run(ctx context.Context, o Options) (r *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	w, err := makeWorkspace(&o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			// What the interruption broke is of no interest.
			err = fmt.Errorf("interrupted: %w", ctx.Err())
		}
		err = errors.Join(err, w.remove())
	}()
	what, all := ceilings(o.noFio)
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name()
	}
	fmt.Fprintf(o.Out, "directory %s; rounds of up to %s, %d operations at a time, O_DIRECT; ceilings: %s; memcpy\n\n",
		o.Dir, bytesize.Size(o.RoundBytes).Rounded(), depth, strings.Join(names, ", "))
	r = &Result{Ceiling: what, Blocks: o.Blocks}
	if err := r.compare(ctx, &o, w); err != nil {
		return nil, err
	}
	if err := r.crowd(ctx, &o, w); err != nil {
		return nil, err
	}
	return r, nil
}

// compare measures disk and copies at every block size.
func (r *Result) compare(ctx context.Context, o *Options, w *workspace) error {
	printHeading(o.Out)
	for _, measure := range []func(context.Context, *Options, *workspace, uint64) ([]Comparison, error){compareDisk, compareCopies} {
		for _, size := range o.Sizes {
			found, err := measure(ctx, o, w, size)
			if err != nil {
				return err
			}
			for i := range found {
				found[i].print(o.Out)
			}
			r.Comparisons = append(r.Comparisons, found...)
		}
	}
	fmt.Fprintf(o.Out, "\n%-14s  %-16s  %s\n", "", "least median", "geometric mean of medians")
	for _, what := range []string{readName, writeName, spreadRead, spreadWrite, copyName} {
		fmt.Fprintf(o.Out, "%-14s  %-16.3f  %.3f\n", what, r.Least(what), r.Geometric(what))
	}
	return nil
}

// crowd measures a pool with many blocks.
func (r *Result) crowd(ctx context.Context, o *Options, w *workspace) (err error) {
	dir, err := w.sub("registered")
	if err != nil {
		return err
	}
	c, open, err := openCrowd(ctx, o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	r.Open = open
	if err := c.warm(ctx); err != nil {
		return err
	}
	if r.Lookups, err = c.measureLookups(ctx, o.Duration/4); err != nil {
		return err
	}
	if r.Pauses, err = c.measurePauses(ctx, o.Duration); err != nil {
		return err
	}
	idle, busy := r.Lookups, r.Pauses.Lookups
	fmt.Fprintf(o.Out, "\n%d blocks registered, %d of them in host memory; opened in %.2f s (%.2f-%.2f)\n",
		o.Blocks, c.prompts*promptBlocks, open.Median, open.Low, open.High)
	fmt.Fprintf(o.Out, "%-28s %8s %10s %10s %10s\n", "prefix of 1000, microseconds", "look-ups", "p50", "p99", "unpin p50")
	fmt.Fprintf(o.Out, "%-28s %8d %10.1f %10.1f %10.1f\n", "  alone", idle.N, idle.P50, idle.P99, idle.Unpin)
	fmt.Fprintf(o.Out, "%-28s %8d %10.1f %10.1f %10.1f\n", "  during collections", busy.N, busy.P50, busy.P99, busy.Unpin)
	fmt.Fprintf(o.Out, "collector: %d cycles, %d pauses, milliseconds: p50 %.3f, p99 %.3f, most %.3f; %d blocks stored meanwhile\n\n",
		r.Pauses.Cycles, r.Pauses.N, r.Pauses.P50, r.Pauses.P99, r.Pauses.Max, r.Pauses.Stored)
	return nil
}

// The operations that are compared.
const (
	readName  = "disk read"
	writeName = "disk write"
	copyName  = "copy"
	// The same against a loop over as much memory: they tell what of a difference
	// comes from fio's few buffers, and are not in the last line.
	spreadRead  = "  spread read"
	spreadWrite = "  spread write"
)

// medians are those of an operation's ratios, one for each block size.
func (r *Result) medians(what string) []float64 {
	var m []float64
	for i := range r.Comparisons {
		if c := &r.Comparisons[i]; c.What == what {
			m = append(m, c.Ratio.Median)
		}
	}
	return m
}

// Least is the smallest median ratio that an operation ("disk read", "disk
// write" or "copy") has over the block sizes.
func (r *Result) Least(what string) float64 {
	least := math.Inf(1)
	for _, m := range r.medians(what) {
		least = min(least, m)
	}
	return least
}

// Geometric is the geometric mean of these medians.
func (r *Result) Geometric(what string) float64 { return geometricMean(r.medians(what)) }

// OpenSeconds is the median time to open, for ten million blocks.
func (r *Result) OpenSeconds() float64 { return r.Open.Median / float64(r.Blocks) * 10e6 }

// Lines are the last two lines of a report. Ratios are rounded down, times up:
// no target is met by rounding.
func (r *Result) Lines() string {
	down := func(v float64) float64 { return math.Floor(v*100) / 100 }
	return fmt.Sprintf("bench-disk: open_s_per_10M=%.2f\n", math.Ceil(r.OpenSeconds()*100)/100) +
		fmt.Sprintf("bench-disk: read=%.2f write=%.2f copy=%.2f lookup_us=%.0f gc_p99_ms=%.3f ceiling=%s\n",
			down(r.Least(readName)), down(r.Least(writeName)), down(r.Least(copyName)),
			math.Ceil(r.Lookups.P50), math.Ceil(r.Pauses.P99*1000)/1000, r.Ceiling)
}
