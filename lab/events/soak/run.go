package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// resetOdds is one in how many rounds a prefix cache is reset.
const resetOdds = 3

// Run restarts processes and drops events under load, and compares the router's index with the
// truth, until the time is over or ctx ends. It writes progress and figures to o.Out. The error
// says what was wrong, or that the run proved nothing. First comes a short run without repair,
// which must find differences; with o.NoRepair it is the only one.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	if o.NoRepair {
		t, err := o.play(ctx, true)
		return errors.Join(o.report(t, err), blind(t, err))
	}
	short := o
	short.Rounds, short.calm = 1, true
	t, err := short.play(ctx, true)
	if err != nil {
		return fmt.Errorf("without repair: %w", err)
	}
	fmt.Fprintf(o.Out, "soak-events (repair off): compared=%d lost=%d diverged=%d\n", t.compared, t.lost, t.diverged)
	if err := blind(t, nil); err != nil {
		return err
	}
	t, err = o.play(ctx, false)
	return o.report(t, err)
}

// blind returns an error for a run without repair that did not diverge.
func blind(t *tally, err error) error {
	if err == nil && t.diverged == 0 {
		return errors.New("nothing diverged without repair: the comparison is blind")
	}
	return nil
}

// play makes one run with processes of its own and returns its counts. With noRepair the router
// cannot ask for lost events.
func (o *Options) play(ctx context.Context, noRepair bool) (t *tally, err error) {
	dirs, err := cluster.MakeDirs("blockyard-soak", o.Dir, o.HostDir, 0)
	if err != nil {
		return nil, err
	}
	c := cluster.New(cluster.Options{Programs: o.Programs, NATSServer: o.NATSServer, Dirs: dirs, BlindRouter: noRepair})
	defer func() {
		c.Close(0)
		keep := ctx.Err() == nil && !noRepair && (err != nil || t.verdict(o) != nil)
		if keep {
			fmt.Fprintf(o.Out, "logs: %s\n", dirs.Logs)
		}
		err = errors.Join(err, dirs.Remove(keep))
	}()
	w, err := newWorld(ctx, c, o.Seed)
	if err != nil {
		return nil, err
	}
	defer w.load.stop()
	w.wanted = blindPatience
	if !noRepair {
		w.wanted = patience
	}
	var bag []fault
	faults := faultsPerRound
	if o.calm {
		faults = 0
	}
	for began := time.Now(); !o.over(w.tally.rounds, began); {
		if err := w.round(ctx, &bag, faults, noRepair, o.Out); err != nil {
			return &w.tally, err
		}
	}
	for _, a := range w.agents {
		w.countAgent(ctx, a)
	}
	for i := range w.engines {
		w.countEngine(ctx, w.engines[i].Load())
	}
	return &w.tally, nil
}

// over reports whether there have been enough rounds.
func (o *Options) over(rounds uint64, began time.Time) bool {
	if o.Rounds > 0 {
		return rounds >= uint64(o.Rounds)
	}
	return time.Since(began) >= o.Duration
}

// round loads the engines while faults happen, waits for rest and compares. Without repair it
// compares a new router, which can learn nothing of earlier events. bag has the kinds of faults
// that have not come yet.
func (w *world) round(ctx context.Context, bag *[]fault, faults int, noRepair bool, out io.Writer) error {
	w.tally.rounds++
	began := time.Now()
	w.load.start(ctx, w.rng.Uint64(), w.endpoint)
	err := w.breakThings(ctx, bag, faults)
	w.load.stop()
	if err != nil {
		return err
	}
	if noRepair {
		if err := w.restartRouter(ctx); err != nil {
			return err
		}
	}
	if w.rng.IntN(resetOdds) == 0 {
		if err := w.resetEngine(ctx); err != nil {
			return err
		}
	}
	v, err := w.rest(ctx, "after faults")
	if err != nil || noRepair {
		return err
	}
	if err := w.calmRestart(ctx, w.rng.IntN(nodes), v); err != nil {
		return err
	}
	if _, err := w.rest(ctx, "after a calm restart"); err != nil {
		return err
	}
	fmt.Fprintf(out, "round %d: %.1f s, %d compared so far, %d diverged\n",
		w.tally.rounds, time.Since(began).Seconds(), w.tally.compared, w.tally.diverged)
	return nil
}

// breakThings lets the load run for a while, with that many faults at random instants.
func (w *world) breakThings(ctx context.Context, bag *[]fault, faults int) error {
	for range faults {
		load := minLoad + w.upTo(maxLoad-minLoad)
		if err := cluster.Wait(ctx, load/faultsPerRound); err != nil {
			return err
		}
		if err := w.alive(); err != nil {
			return err
		}
		if err := draw(w.rng, bag)(w, ctx); err != nil {
			return err
		}
	}
	return cluster.Wait(ctx, minLoad/faultsPerRound)
}

// draw takes the next fault out of the bag. An empty bag gets every kind of fault again, in
// random order, so that each kind comes equally often.
func draw(rng *rand.Rand, bag *[]fault) fault {
	if len(*bag) == 0 {
		*bag = faults()
		rng.Shuffle(len(*bag), func(i, j int) { (*bag)[i], (*bag)[j] = (*bag)[j], (*bag)[i] })
	}
	f := (*bag)[0]
	*bag = (*bag)[1:]
	return f
}

// rest waits until all processes are idle, adds the comparison of the router's index to the
// tally, and returns the state. when says in notes what came before.
func (w *world) rest(ctx context.Context, when string) (*cluster.Picture, error) {
	p, err := w.parts().Settle(ctx, w.wanted)
	if err == nil {
		err = w.alive()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", when, err)
	}
	t := &w.tally
	t.compared += uint64(p.Diff.Compared)
	t.lost += uint64(p.Diff.Lost)
	t.diverged += uint64(p.Diff.Diverged())
	for _, what := range slices.Concat([]string{p.Moving}, p.Inexact, p.Diff.First) {
		if what != "" {
			t.note("round %d %s: %s", t.rounds, when, what)
		}
	}
	return p, nil
}
