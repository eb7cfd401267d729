package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// Run measures and writes the figures to o.Out, of which the last line is for
// scripts. No process and no file is left, but for the logs of a run that failed,
// which o.Out names.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	dirs, err := cluster.MakeDirs("blockyard-bench-events", o.Dir, o.HostDir, 0)
	if err != nil {
		return err
	}
	r := cluster.New(cluster.Options{Programs: o.Programs, NATSServer: o.NATSServer, Dirs: dirs})
	defer func() {
		r.Close(0)
		keep := err != nil && ctx.Err() == nil
		if keep {
			fmt.Fprintf(o.Out, "logs: %s\n", dirs.Logs)
		}
		err = errors.Join(err, dirs.Remove(keep))
	}()
	plain, wire, err := measureRounds(ctx, r, &o)
	if err != nil {
		return err
	}
	visible, err := measureVisible(ctx, r, &o)
	if err != nil {
		return fmt.Errorf("age of events: %w", err)
	}
	_, err = fmt.Fprint(o.Out, lines(&o, plain, wire, &visible))
	return err
}

// measureRounds returns the medians of rounds of two measurements in turn: plain only receives
// and decodes events, and wire is the whole way through the agent's code.
func measureRounds(ctx context.Context, r *cluster.Cluster, o *Options) (plain, wire wireFigures, err error) {
	var plains, wires []wireFigures
	for round := range wireRounds {
		for turn := range 2 {
			isPlain := (round+turn)%2 == 0 // each goes first as often
			f, err := measureWire(ctx, r, o, isPlain)
			switch {
			case err != nil && isPlain:
				return plain, wire, fmt.Errorf("receive and decode: %w", err)
			case err != nil:
				return plain, wire, fmt.Errorf("wire to wire: %w", err)
			case isPlain:
				plains = append(plains, f)
			default:
				wires = append(wires, f)
			}
		}
	}
	return medians(plains), medians(wires), nil
}

// medians returns the median over the rounds of each figure, separately.
func medians(rounds []wireFigures) wireFigures {
	of := func(figure func(*wireFigures) float64) float64 {
		var values []float64
		for i := range rounds {
			values = append(values, figure(&rounds[i]))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return wireFigures{
		fill:   of(func(f *wireFigures) float64 { return f.fill }),
		churn:  of(func(f *wireFigures) float64 { return f.churn }),
		allocs: of(func(f *wireFigures) float64 { return f.allocs }),
		heap:   of(func(f *wireFigures) float64 { return f.heap }),
		rss:    of(func(f *wireFigures) float64 { return f.rss }),
		out:    of(func(f *wireFigures) float64 { return f.out }),
	}
}

// lines returns the figures as text for people, and a last line for scripts. In that line rates
// are rounded down, and times, sizes and counts up, so that no target is met by rounding.
func lines(o *Options, plain, wire wireFigures, v *visibleFigures) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d blocks of %d tokens, %d in a batch; processor time of one process, medians of %d rounds; %d processors here\n",
		o.Blocks, blockSize, batchBlocks, wireRounds, runtime.NumCPU())
	fmt.Fprintf(&b, "%-24s %14s %14s %14s %12s\n", "", "stores ns", "churn ns", "churn blocks/s", "allocations")
	row := func(name string, f wireFigures) {
		fmt.Fprintf(&b, "%-24s %14.0f %14.0f %14.0f %12.3f\n", name, f.fill, f.churn, 1e9/f.churn, f.allocs)
	}
	row("wire to wire", wire)
	row("  receive and decode", plain)
	fmt.Fprintf(&b, "receiving and decoding is %.0f %% of the time of stores, %.0f %% of that of churn; %.1f bytes out for each block named\n",
		100*plain.fill/wire.fill, 100*plain.churn/wire.churn, wire.out)
	fmt.Fprintf(&b, "bytes for each tracked block: %.1f of heap, %.1f of resident memory\n", wire.heap, wire.rss)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	fmt.Fprintf(&b, "age of events at the router, %d probes: p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, most %.2f ms; a question every %.2f ms; gaps at the router: %d\n",
		len(v.ages), ms(v.quantile(0.5)), ms(v.quantile(0.9)), ms(v.quantile(0.99)), ms(v.quantile(1)), ms(v.asks), v.gaps)
	fmt.Fprintf(&b, "bench-events: rate=%.0f blocks_per_s=%.0f allocs_per_block=%.3f visible_p99_ms=%.2f bytes_per_block=%.1f\n",
		math.Floor(v.rate), math.Floor(1e9/max(wire.fill, wire.churn)), math.Ceil(1000*wire.allocs)/1000,
		math.Ceil(100*ms(v.quantile(0.99)))/100, math.Ceil(10*wire.heap)/10)
	return b.String()
}
