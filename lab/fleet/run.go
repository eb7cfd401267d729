package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/simulate"
)

// Run kills processes under load and compares the routers, until the time is over or ctx ends. It writes
// progress and figures to o.Out. The error says what was wrong, or that the run proved nothing.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	var simulated *simulate.Fleet
	if o.Seeds > 0 {
		f, err := simulate.CompareFleet(ctx, "weights", o.Routers, o.Seeds)
		if err != nil {
			return fmt.Errorf("soak-fleet: %w", err)
		}
		fmt.Fprintf(o.Out, "simulated: time to the first token of %d routers over that of one: mean %.3f, p99 %.3f; without shared bookings %.3f, %.3f\n",
			f.Routers, f.Mean, f.P99, f.StaleMean, f.StaleP99)
		simulated = &f
	}
	w, err := o.play(ctx)
	if err != nil {
		return fmt.Errorf("soak-fleet: %w (seed %d)", err, o.Seed)
	}
	w.simulated = simulated
	return w.report()
}

// play makes a run with processes of its own.
func (o *Options) play(ctx context.Context) (w *world, err error) {
	dirs, err := cluster.MakeDirs("blockyard-fleet", o.Dir, o.HostDir, 0)
	if err != nil {
		return nil, err
	}
	c := cluster.New(cluster.Options{Programs: o.Programs, NATSServer: o.NATSServer, Dirs: dirs, Calls: 2 * clients})
	defer func() {
		c.Close(0)
		keep := ctx.Err() == nil && (err != nil || w.verdict() != nil)
		if keep {
			fmt.Fprintf(o.Out, "logs: %s\n", dirs.Logs)
		}
		err = errors.Join(err, dirs.Remove(keep))
	}()
	if w, err = newWorld(ctx, c, o); err != nil {
		return nil, err
	}
	var bag []fault
	for began := time.Now(); !o.over(w.tally.rounds, began); {
		if err := w.round(ctx, &bag); err != nil {
			return nil, err
		}
	}
	for _, r := range w.all() {
		w.count(ctx, r)
	}
	return w, nil
}

// over reports whether there have been enough rounds.
func (o *Options) over(rounds int, began time.Time) bool {
	if o.Rounds > 0 {
		return rounds >= o.Rounds
	}
	return time.Since(began) >= o.Duration
}

// round loads the routers while processes are killed, compares the routers after the quiet, and frees the
// requests that were kept.
func (w *world) round(ctx context.Context, bag *[]fault) error {
	w.tally.rounds++
	began := time.Now()
	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	seed := w.rng.Uint64N(1 << 32)
	for n := range clients {
		running.Go(func() { w.client(loading, n, seed) })
	}
	err := w.breakThings(ctx, bag)
	cancel()
	running.Wait()
	if err != nil {
		return err
	}
	d, err := w.settle(ctx)
	if err != nil {
		return err
	}
	t := &w.tally
	t.kills = t.routerKills + t.routerStops + t.agentKills + t.brokerKills
	t.compared += d.compared
	t.diverged, t.lost, t.doubleBooked = t.diverged+d.diverged, t.lost+d.lost, t.doubleBooked+d.double
	for _, text := range d.first {
		w.note("round %d: %s", t.rounds, text)
	}
	fmt.Fprintf(w.o.Out, "round %d: %.1f s, %d kills so far, %d bookings compared, %d diverged, %d lost, %d double\n",
		t.rounds, time.Since(began).Seconds(), t.kills, d.compared, d.diverged, d.lost, d.double)
	for _, id := range w.ledger.takeKept() {
		w.free(w.rng, id)
	}
	return nil
}

// breakThings lets the load run, with faults at random instants.
func (w *world) breakThings(ctx context.Context, bag *[]fault) error {
	for range faultsPerRound {
		if err := cluster.Wait(ctx, time.Duration(w.rng.Int64N(int64(loadPart)))); err != nil {
			return err
		}
		if len(*bag) == 0 {
			*bag = faults()
			w.rng.Shuffle(len(*bag), func(i, j int) { (*bag)[i], (*bag)[j] = (*bag)[j], (*bag)[i] })
		}
		f := (*bag)[0]
		*bag = (*bag)[1:]
		if err := f(w, ctx); err != nil {
			return err
		}
	}
	return cluster.Wait(ctx, loadPart)
}

// report prints the figures of a run and returns its verdict.
func (w *world) report() error {
	t := &w.tally
	mean, p99 := "not_measured", "not_measured"
	if f := w.simulated; f != nil {
		mean, p99 = fmt.Sprintf("%.3f", f.Mean), fmt.Sprintf("%.3f", f.P99)
	}
	var b strings.Builder
	for _, n := range w.notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	l := w.ledger
	fmt.Fprintf(&b, "rounds %d; killed: routers %d times, agents %d, NATS %d; stopped: routers %d times\n",
		t.rounds, t.routerKills, t.agentKills, t.brokerKills, t.routerStops)
	fmt.Fprintf(&b, "%d requests booked, %d output blocks, %d freed, %d bookings failed; %d marks not found, %d not answered\n",
		l.booked.Load(), l.outputs.Load(), l.freed.Load(), l.failed.Load(), l.unknown.Load(), l.unanswered.Load())
	fmt.Fprintf(&b, "bookings compared %d; all routers agreed %d ms after the load at the latest; %d marks forwarded, %d messages, %d lost, %d restatements\n",
		t.compared, t.settled.Milliseconds(), t.forwarded, t.messages, t.missed, t.restatements)
	fmt.Fprintf(&b, "seed %d\n", w.o.Seed)
	fmt.Fprintf(&b, "soak-fleet: routers=%d kills=%d diverged=%d lost=%d double_booked=%d ttft_vs_one=%s ttft_p99_vs_one=%s\n",
		w.o.Routers, t.kills, t.diverged, t.lost, t.doubleBooked, mean, p99)
	_, err := fmt.Fprint(w.o.Out, b.String())
	return errors.Join(err, w.verdict())
}

// maxRatio bounds the simulated times to the first token of all routers over those of one router.
const maxRatio = 1.03

// verdict returns an error for a run whose routers differed, for simulated routers that are slower than one by more
// than maxRatio, and for a run that proves nothing because it compared no booking or killed no process of a kind.
func (w *world) verdict() error {
	t, l := &w.tally, w.ledger
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("soak-fleet: %s (seed %d)", fmt.Sprintf(format, args...), w.o.Seed)
	}
	if t.diverged+t.lost+t.doubleBooked > 0 || l.unknown.Load()+l.unanswered.Load() > 0 {
		return wrong("diverged=%d lost=%d double_booked=%d, marks not found %d, not answered %d",
			t.diverged, t.lost, t.doubleBooked, l.unknown.Load(), l.unanswered.Load())
	}
	if f := w.simulated; f != nil && !(f.Mean <= maxRatio && f.P99 <= maxRatio) { // not a number is wrong too
		return wrong("ttft_vs_one=%.3f ttft_p99_vs_one=%.3f, limit %.2f", f.Mean, f.P99, maxRatio)
	}
	for _, c := range []struct {
		what  string
		count uint64
	}{
		{"compared booking", uint64(t.compared)}, {"kill of a router", uint64(t.routerKills)}, {"kill of an agent", uint64(t.agentKills)},
		{"orderly end of a router", uint64(t.routerStops)}, {"output block", l.outputs.Load()}, {"kill of NATS", uint64(t.brokerKills)}, {"forwarded mark", t.forwarded}, {"restatement", t.restatements}, {"freed request", l.freed.Load()},
	} {
		if c.count == 0 {
			return wrong("the run proves nothing: it saw no %s", c.what)
		}
	}
	return nil
}
