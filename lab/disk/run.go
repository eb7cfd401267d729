package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

const (
	// DefaultDuration is Options.Duration when it is zero.
	DefaultDuration = 20 * time.Second
	// DefaultBlocks is Options.Blocks when it is zero.
	DefaultBlocks = 10_000_000
	// DefaultRoundBytes is Options.RoundBytes when it is zero: many times the caches,
	// and little enough for many rounds.
	DefaultRoundBytes = 512 << 20
	// DefaultHostDir is Options.HostDir when it is empty.
	DefaultHostDir = "/dev/shm"

	// maxRoundBytes leaves room for the generation words in the one extent of a round.
	maxRoundBytes = storage.MaxExtentBytes - 1<<20
	// minBlocks holds the prompts that lookups cycle through.
	minBlocks, maxBlocks = 2 * promptBlocks, 30_000_000
	maxBlockBytes        = 64 << 20
	maxDuration          = time.Hour
)

// Options of a run. The zero value of a field is its default.
type Options struct {
	// Dir is the parent of the disk files, on the device to measure; default the
	// temporary directory. A directory in memory is refused.
	Dir string
	// HostDir is the parent of the host extents, default DefaultHostDir.
	HostDir string
	// Duration is the time for the disk rounds of one block size, default
	// DefaultDuration. Copies and lookups get parts of it.
	Duration time.Duration
	// Sizes are the block sizes, whole pages each, default DefaultSizes.
	Sizes []uint64
	// RoundBytes bounds the bytes of one round, default DefaultRoundBytes.
	RoundBytes uint64
	// Blocks is the number of registered blocks for lookups and pauses, default
	// DefaultBlocks.
	Blocks int
	// Copier is the command of a process that calls ServeCopies on its standard input
	// and output. It must be set.
	Copier []string
	// Out gets the tables; it must be set.
	Out io.Writer
	// Log gets the manager's warnings; nil drops them.
	Log *zap.Logger

	// noFio compares with the plain loop even where fio is installed.
	noFio bool
}

// DefaultSizes returns the block sizes that a run compares by default, in bytes.
func DefaultSizes() []uint64 { return []uint64{1 << 20, 2 << 20, 5 << 20, 8 << 20} }

// Validate checks every field. The error names the first bad one.
func (o *Options) Validate() error {
	d := o.withDefaults()
	if d.Duration < 0 || d.Duration > maxDuration {
		return fmt.Errorf("duration %s: want more than 0s, at most %s", d.Duration, maxDuration)
	}
	if d.RoundBytes < storage.PageSize*depth || d.RoundBytes > maxRoundBytes {
		return fmt.Errorf("round size %d: want %d to %d bytes", d.RoundBytes, storage.PageSize*depth, maxRoundBytes)
	}
	for _, size := range d.Sizes {
		if size == 0 || size%storage.PageSize != 0 || size > maxBlockBytes {
			return fmt.Errorf("block size %d: want a multiple of %d bytes, at most %d", size, storage.PageSize, maxBlockBytes)
		}
		if size*depth > d.RoundBytes {
			return fmt.Errorf("block size %d: want at most %d bytes, a round moves %d and at least %d blocks", size, d.RoundBytes/depth, d.RoundBytes, depth)
		}
	}
	if d.Blocks < minBlocks || d.Blocks > maxBlocks {
		return fmt.Errorf("blocks %d: want %d to %d", d.Blocks, minBlocks, maxBlocks)
	}
	if len(d.Copier) == 0 {
		return fmt.Errorf("copier %q: must be a command", d.Copier)
	}
	if d.Out == nil {
		return fmt.Errorf("output: must be set")
	}
	return nil
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Dir = cmp.Or(o.Dir, os.TempDir())
	o.HostDir = cmp.Or(o.HostDir, DefaultHostDir)
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	if len(o.Sizes) == 0 {
		o.Sizes = DefaultSizes()
	}
	o.Sizes = slices.Clone(o.Sizes)
	o.RoundBytes = cmp.Or(o.RoundBytes, DefaultRoundBytes)
	o.Blocks = cmp.Or(o.Blocks, DefaultBlocks)
	o.Log = cmp.Or(o.Log, zap.NewNop())
	return o
}

// roundBlocks returns the number of blocks of a round, a multiple of depth.
func (o *Options) roundBlocks(size uint64) int { return int(o.RoundBytes / size / depth * depth) }

// Result has the figures of a run.
type Result struct {
	// Ceiling is the ceiling of disk throughput: "fio" or "raw".
	Ceiling string
	// Comparisons are in the order of their measurement.
	Comparisons []Comparison
	// Blocks is the number of registered blocks in the measurements below.
	Blocks int
	// Open has the seconds of opening the pool on them.
	Open Summary
	// Lookups are the lookups without other load.
	Lookups Lookups
	Pauses  Pauses
}

// Run measures everything, prints the tables and cleans up. It fails without enough
// room, when a block is lost or wrong, and when ctx ends.
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
			// Errors that the interruption caused do not matter.
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
	if err := r.measureFullPool(ctx, &o, w); err != nil {
		return nil, err
	}
	return r, nil
}

// compare measures the disk tier and copies at every block size, prints the results and adds them
// to r.
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

// measureFullPool measures opening, look-ups and garbage collection of a pool with many blocks,
// prints the results and sets them in r.
func (r *Result) measureFullPool(ctx context.Context, o *Options, w *workspace) (err error) {
	dir, err := w.sub("registered")
	if err != nil {
		return err
	}
	c, open, err := openFullPool(ctx, o, dir)
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
	// The same beside a loop over as much memory. It shows how much of a difference
	// comes from fio's few buffers, and is not in the last line.
	spreadRead  = "  spread read"
	spreadWrite = "  spread write"
)

// medians returns the median ratios of an operation, one for each block size.
func (r *Result) medians(what string) []float64 {
	var m []float64
	for i := range r.Comparisons {
		if c := &r.Comparisons[i]; c.What == what {
			m = append(m, c.Ratio.Median)
		}
	}
	return m
}

// Least returns the smallest median ratio of an operation ("disk read", "disk write" or
// "copy") over the block sizes.
func (r *Result) Least(what string) float64 {
	least := math.Inf(1)
	for _, m := range r.medians(what) {
		least = min(least, m)
	}
	return least
}

// Geometric returns the geometric mean of these medians.
func (r *Result) Geometric(what string) float64 { return geometricMean(r.medians(what)) }

// OpenSeconds returns the median time to open, for ten million blocks.
func (r *Result) OpenSeconds() float64 { return r.Open.Median / float64(r.Blocks) * 10e6 }

// Lines returns the last two lines of a report. Ratios are rounded down and times up,
// so that no target is met by rounding.
func (r *Result) Lines() string {
	down := func(v float64) float64 { return math.Floor(v*100) / 100 }
	return fmt.Sprintf("bench-disk: open_s_per_10M=%.2f\n", math.Ceil(r.OpenSeconds()*100)/100) +
		fmt.Sprintf("bench-disk: read=%.2f write=%.2f copy=%.2f lookup_us=%.0f gc_p99_ms=%.3f ceiling=%s\n",
			down(r.Least(readName)), down(r.Least(writeName)), down(r.Least(copyName)),
			math.Ceil(r.Lookups.P50), math.Ceil(r.Pauses.P99*1000)/1000, r.Ceiling)
}
