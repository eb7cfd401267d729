package soak

import (
	"errors"
	"fmt"
	"time"
)

const (
	tableHead = "%9s %12s %10s %10s %10s %10s %10s %10s\n"
	tableRow  = "%9.1f %12d %10d %10d %10d %10.2f %10.1f %10.1f\n"
)

// report compares the index with all owners, prints the figures of the run, and returns an error
// for wrong contents or figures out of bounds. took is how long the run lasted.
func (w *world) report(r *reader, samples []sample, took time.Duration) error {
	for w.index.Sweep(sweepRuns) {
	}
	right, err := w.check()
	late := settled(samples, w.o.Duration)
	grown := slopes{slope(late, heapOf), slope(late, rssOf), slope(late, indexOf)}
	rate := float64(w.blocks.Load()) / took.Seconds()
	_, printErr := fmt.Fprintf(w.o.Out, "%d workers left and as many came; %d dumps replaced an owner's blocks; %d owners lost all of them; %d decisions; the index by its own account %.3f %% a minute; slopes from %d samples\n"+
		"soak-index: blocks_per_s=%.0f lookups=%d heap_slope_pct_per_min=%.3f rss_slope_pct_per_min=%.3f digests_ok=%d/%d\n",
		w.left, w.replaced, w.cleared, r.decisions.Load(), grown.index, len(late),
		rate, r.lookups.Load(), grown.heap, grown.rss, right, len(w.owners))
	if err := errors.Join(err, printErr, w.o.judge(grown, rate)); err != nil {
		return fmt.Errorf("soak-index: %w (seed %d)", err, w.o.Seed)
	}
	return nil
}

// slopes are the growth of each memory in a minute, in per cent of its mean.
type slopes struct{ heap, rss, index float64 }

// judge returns an error when memory grows too fast or the index was too slow. A run shorter than
// MinJudged is not judged. rate is in blocks per second.
func (o *Options) judge(got slopes, rate float64) error {
	if o.Duration < MinJudged {
		return nil
	}
	var errs []error
	for _, s := range []struct {
		name  string
		slope float64
	}{{"heap", got.heap}, {"resident memory", got.rss}} {
		if !(s.slope <= o.MaxSlope) {
			errs = append(errs, fmt.Errorf("%s grows by %.3f %% a minute, more than %g", s.name, s.slope, o.MaxSlope))
		}
	}
	if rate < minRate*float64(o.Rate) {
		errs = append(errs, fmt.Errorf("%.0f blocks/s, less than %g of %d", rate, minRate, o.Rate))
	}
	return errors.Join(errs...)
}
