package calibrate

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/blockyard-ai/blockyard/lab/simulate/report"
)

// tolerance is how far the simulator may be from the engine.
const tolerance = 0.15

// Figures are times in milliseconds: to the first token, and between tokens.
type Figures struct{ TTFTMean, TTFTP99, ITLMean, ITLP99 float64 }

// measured returns the figures of answers.
func measured(answers []Answer) (f Figures) {
	var firsts, gaps []float64
	for _, a := range answers {
		firsts = append(firsts, 1e3*(a.First-a.Sent))
		gaps = append(gaps, a.Gaps...)
	}
	f.TTFTMean, f.TTFTP99 = meanAndP99(firsts)
	f.ITLMean, f.ITLP99 = meanAndP99(gaps)
	return f
}

// simulated returns the figures of a run of the simulator.
func simulated(r *report.Result) Figures {
	return Figures{r.TTFTMean, r.TTFTP99, r.TBTMean, r.TBTP99}
}

// meanAndP99 sorts the values. Without values both are 0.
func meanAndP99(values []float64) (mean, p99 float64) {
	if len(values) == 0 {
		return 0, 0
	}
	slices.Sort(values)
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean, values[int(math.Ceil(0.99*float64(len(values))))-1]
}

// Comparison is the simulator beside the engine, for one load.
type Comparison struct{ Simulated, Real Figures }

// each calls do with the name of each figure and its values.
func (c *Comparison) each(do func(name string, simulated, real float64)) {
	s, r := &c.Simulated, &c.Real
	do("ttft_mean", s.TTFTMean, r.TTFTMean)
	do("ttft_p99", s.TTFTP99, r.TTFTP99)
	do("itl_mean", s.ITLMean, r.ITLMean)
	do("itl_p99", s.ITLP99, r.ITLP99)
}

// print writes the figures of a load.
func (c *Comparison) print(out io.Writer, title string) {
	fmt.Fprintf(out, "%s: milliseconds\n%-10s %10s %10s\n", title, "", "simulated", "real")
	c.each(func(name string, simulated, real float64) {
		fmt.Fprintf(out, "%-10s %10.2f %10.2f\n", name, simulated, real)
	})
}

// String returns the last line of a report: what is simulated over what is real.
func (c *Comparison) String() string {
	line := "calibrate:"
	c.each(func(name string, simulated, real float64) { line += fmt.Sprintf(" %s=%.3f", name, simulated/real) })
	return line
}

// Check returns an error that names each figure beyond the tolerance.
func (c *Comparison) Check() error {
	var all []error
	c.each(func(name string, simulated, real float64) {
		if ratio := simulated / real; !(math.Abs(ratio-1) <= tolerance) {
			all = append(all, fmt.Errorf("calibrate %s: %.3f is not in %.2f..%.2f", name, ratio, 1-tolerance, 1+tolerance))
		}
	})
	return errors.Join(all...)
}
