package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// writeTick is the time between two batches of writes.
	writeTick = 2 * time.Millisecond
	// A run has about this many disturbances, with a pause within these bounds.
	disturbances               = 300
	minDisturbance, maxDisturb = 10 * time.Millisecond, 2 * time.Second
	// minRate is the part of the rate that a judged run must keep.
	minRate = 0.95
)

// Run runs the soak and writes samples and figures to o.Out; the last line is for
// scripts. doc.go lists its errors.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	w, err := newWorld(o)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(o.Out, "%d workers and %d pools of %d blocks each, %d blocks/s, %d lookups/s, %s; seed %d\n",
		o.Workers, o.Pools, o.Pool, o.Rate, o.Lookups, o.Duration, o.Seed); err != nil {
		return err
	}
	r := &reader{w: w, rng: rand.New(rand.NewPCG(o.Seed, 9))}
	start := time.Now()
	samples, err := w.runAll(ctx, r, start)
	if err != nil {
		return fmt.Errorf("soak-index: %w (seed %d)", err, o.Seed)
	}
	return w.report(r, samples, time.Since(start))
}

// runAll runs writer, reader, sweeper and sampler, each in a goroutine, until the time is over.
// It returns the samples of memory.
func (w *world) runAll(ctx context.Context, r *reader, start time.Time) ([]sample, error) {
	g, gctx := errgroup.WithContext(ctx)
	// The writer decides how long the run lasts. The others end when going ends.
	going, stop := context.WithCancel(gctx)
	defer stop()
	g.Go(func() error {
		defer stop()
		return w.write(gctx, start)
	})
	g.Go(func() error { return r.run(going) })
	g.Go(func() error { return w.sweep(going) })
	var samples []sample
	g.Go(func() (err error) {
		samples, err = w.watch(going, r, start)
		return err
	})
	err := g.Wait()
	return samples, err
}

// write has owners store and remove o.Rate blocks per second, with disturbances in between, until
// the time is over.
func (w *world) write(ctx context.Context, start time.Time) error {
	tick := time.NewTicker(writeTick)
	defer tick.Stop()
	every := min(max(w.o.Duration/disturbances, minDisturbance), maxDisturb)
	next := every
	for {
		at := time.Since(start)
		if at >= w.o.Duration {
			return nil
		}
		for due := uint64(at.Seconds() * float64(w.o.Rate)); w.blocks.Load() < due; {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.serve(); err != nil {
				return err
			}
		}
		if at >= next {
			next += every
			if err := w.disturb(); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watch takes a sample of the memory at every o.Sample until ctx ends, prints each and returns all.
func (w *world) watch(ctx context.Context, r *reader, start time.Time) ([]sample, error) {
	tick := time.NewTicker(w.o.Sample)
	defer tick.Stop()
	if _, err := fmt.Fprintf(w.o.Out, tableHead, "seconds", "blocks", "pairs", "lookups", "decisions", "index MB", "heap MB", "RSS MB"); err != nil {
		return nil, err
	}
	var samples []sample
	for {
		select {
		case <-ctx.Done():
			return samples, nil
		case <-tick.C:
		}
		s, err := takeSample(time.Since(start))
		if err != nil {
			return nil, err
		}
		stats := w.index.Stats()
		s.index = uint64(stats.Bytes)
		samples = append(samples, s)
		if _, err := fmt.Fprintf(w.o.Out, tableRow, s.at.Seconds(), w.blocks.Load(), stats.Memberships,
			r.lookups.Load(), r.decisions.Load(), float64(s.index)/1e6, float64(s.heap)/1e6, float64(s.rss)/1e6); err != nil {
			return nil, err
		}
	}
}
