package disk

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
)

// sample is one round of one side.
type sample struct {
	ops     int
	bytes   uint64
	elapsed time.Duration
}

// rate returns bytes a second.
func (s sample) rate() float64 { return float64(s.bytes) / s.elapsed.Seconds() }

// Comparison is the result of alternating rounds of one operation at one block size.
type Comparison struct {
	// What is the operation: "disk write", "disk read" or "copy".
	What string
	// Against names the ceiling.
	Against string
	// BlockBytes is the size of a block.
	BlockBytes uint64
	// Ours and Ceiling are bytes a second. Ratio is ours to the ceiling of the same
	// round.
	Ours, Ceiling, Ratio Summary
	// Ops and Bytes are the totals of each side.
	Ops   int
	Bytes uint64
}

const (
	minRounds = 5
	maxRounds = 1000
)

// side performs and times one round of one of the two sides.
type side func(ctx context.Context) (sample, error)

// pair is one comparison under way.
type pair struct {
	what, against string
	block         uint64
	ours, ceiling side

	rates, limits, ratios []float64
	ops                   int
	bytes                 uint64
}

// round runs both sides of the comparison once, the ceiling first if ceilingFirst is true, and
// adds their rates. Both sides must move equally many bytes.
func (p *pair) round(ctx context.Context, ceilingFirst bool) error {
	var ours, limit sample
	steps := []func() error{
		func() (err error) { ours, err = p.ours(ctx); return err },
		func() (err error) { limit, err = p.ceiling(ctx); return err },
	}
	if ceilingFirst {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("%s of blocks of %d bytes: %w", p.what, p.block, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if ours.bytes != limit.bytes {
		return fmt.Errorf("BUG: %s moved %d bytes, %s %d", p.what, ours.bytes, p.against, limit.bytes)
	}
	p.rates = append(p.rates, ours.rate())
	p.limits = append(p.limits, limit.rate())
	p.ratios = append(p.ratios, ours.rate()/limit.rate())
	p.ops += ours.ops
	p.bytes += ours.bytes
	return nil
}

func (p *pair) result() Comparison {
	return Comparison{
		What: p.what, Against: p.against, BlockBytes: p.block,
		Ours: summarize(p.rates), Ceiling: summarize(p.limits), Ratio: summarize(p.ratios),
		Ops: p.ops, Bytes: p.bytes,
	}
}

// alternate runs rounds of the pairs in turn for d, at least minRounds and at most maxRounds, and
// returns their results. One more round before them does not count, because it allocates memory
// and files.
func alternate(ctx context.Context, d time.Duration, pairs ...*pair) ([]Comparison, error) {
	for _, p := range pairs {
		warm := *p
		if err := warm.round(ctx, false); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	for n := 0; n < minRounds || n < maxRounds && time.Since(start) < d; n++ {
		for _, p := range pairs {
			// Each side goes first as often, so that a drift of the machine favours neither.
			if err := p.round(ctx, n%2 == 1); err != nil {
				return nil, err
			}
		}
	}
	results := make([]Comparison, len(pairs))
	for i, p := range pairs {
		results[i] = p.result()
	}
	return results, nil
}

// printHeading writes the heading of the comparisons' table.
func printHeading(w io.Writer) {
	fmt.Fprintf(w, "%-14s %9s %6s %8s %10s  %21s  %21s  %19s  %s\n",
		"", "block", "rounds", "ops", "bytes", "ours MB/s (quartiles)", "ceiling (quartiles)", "ratio (quartiles)", "ceiling")
}

// print writes the comparison's row.
func (c *Comparison) print(w io.Writer) {
	rate := func(s Summary) string { return fmt.Sprintf("%.0f (%.0f-%.0f)", s.Median/1e6, s.Low/1e6, s.High/1e6) }
	fmt.Fprintf(w, "%-14s %9s %6d %8d %10s  %21s  %21s  %19s  %s\n",
		c.What, bytesize.Size(c.BlockBytes).Rounded(), c.Ratio.N, c.Ops, bytesize.Size(c.Bytes).Rounded(), rate(c.Ours), rate(c.Ceiling),
		fmt.Sprintf("%.3f (%.3f-%.3f)", c.Ratio.Median, c.Ratio.Low, c.Ratio.High), c.Against)
}

// Summary describes figures by their quartiles.
type Summary struct {
	// Median is the second quartile, Low and High are the first and the third.
	Median, Low, High float64
	// N is the number of figures.
	N int
}

// summarize sorts a copy of values. Without values it returns NaNs.
func summarize(values []float64) Summary {
	sorted := slices.Sorted(slices.Values(values))
	return Summary{quantile(sorted, 0.5), quantile(sorted, 0.25), quantile(sorted, 0.75), len(sorted)}
}

// quantile returns the q-quantile of ascending values, interpolated; NaN without
// values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// geometricMean returns the geometric mean of values, NaN without values.
func geometricMean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}

// latencies are durations in microseconds.
type latencies []float64

func (l *latencies) add(d time.Duration) { *l = append(*l, float64(d)/float64(time.Microsecond)) }

// at returns the q-quantile.
func (l latencies) at(q float64) float64 { return quantile(slices.Sorted(slices.Values(l)), q) }
