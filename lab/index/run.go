package index

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
)

const (
	// The defaults of the options of the same names.
	DefaultRounds    = 3
	DefaultBusy      = 2 * time.Second
	DefaultDecisions = 300

	maxRounds    = 99
	maxBusy      = 10 * time.Minute
	maxDecisions = 1_000_000
	// Unpinned, as Options.CPU, lets the kernel choose processors.
	Unpinned = -1
	maxCPU   = 1023
)

// Part is one measurement, in a process of its own.
type Part string

// The parts; see the package's documentation.
const (
	PartEvents  Part = "events"
	PartMixed   Part = "mixed"
	PartLookups Part = "lookups"
	PartBusy    Part = "busy"
	PartVisible Part = "visible"
	PartMemory  Part = "memory"
	PartScore   Part = "score"
	PartSelect  Part = "select"
)

// logParts returns the parts that are measured for each log. decisionParts returns
// those that are measured once.
func logParts() []Part {
	return []Part{PartEvents, PartMixed, PartLookups, PartBusy, PartVisible, PartMemory}
}

func decisionParts() []Part { return []Part{PartScore, PartSelect} }

// repeated reports whether a part is measured once a round. The others take many
// samples at once.
func (p Part) repeated() bool { return p == PartEvents || p == PartMixed }

// concurrent reports whether a part needs two processors.
func (p Part) concurrent() bool { return p == PartBusy || p == PartVisible }

// Options of a run. The zero value of a field with a default is that default.
type Options struct {
	// Logs are paths of op logs; the last line is about the last one. Without paths
	// four logs are made from Generate, in a directory in Dir: the worst, an
	// unfriendly one, one with events of one block, and one as Generate says.
	Logs     []string
	Generate loggen.Options
	Dir      string
	// Rounds is the number of measurements of throughput, odd, 1..99, default
	// DefaultRounds. Medians count.
	Rounds int
	// Busy is the least time of measuring lookups beside a writer, and ages of events,
	// default DefaultBusy.
	Busy time.Duration
	// Decisions is the number of timed decisions in each case, 1..1,000,000, default
	// DefaultDecisions.
	Decisions int
	// CPU is the processor for parts with one goroutine, collector included, or
	// Unpinned.
	CPU int
	// Child is the command of a process that calls ServePart.
	Child []string
	// Out gets the figures.
	Out io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	c := o.withDefaults()
	switch {
	case c.Rounds < 1 || c.Rounds > maxRounds || c.Rounds%2 == 0:
		return fmt.Errorf("rounds %d: want an odd number of 1 to %d", c.Rounds, maxRounds)
	case c.Busy < 0 || c.Busy > maxBusy:
		return fmt.Errorf("busy %s: want 0s (default %s) to %s", c.Busy, DefaultBusy, maxBusy)
	case c.Decisions < 1 || c.Decisions > maxDecisions:
		return fmt.Errorf("decisions %d: want 1 to %d", c.Decisions, maxDecisions)
	case c.CPU < Unpinned || c.CPU > maxCPU:
		return fmt.Errorf("cpu %d: want %d (any) to %d", c.CPU, Unpinned, maxCPU)
	case len(c.Child) == 0:
		return fmt.Errorf("child is empty: want the command that measures a part")
	case slices.Contains(c.Logs, ""):
		return fmt.Errorf("log %d: the path is empty", slices.Index(c.Logs, ""))
	}
	return c.Generate.Validate()
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Rounds = cmp.Or(o.Rounds, DefaultRounds)
	o.Busy = cmp.Or(o.Busy, DefaultBusy)
	o.Decisions = cmp.Or(o.Decisions, DefaultDecisions)
	o.Out = cmp.Or(o.Out, io.Discard)
	return o
}

// results are the figures of all parts, medians for repeated parts.
type results map[Part]Figures

// Run measures and writes the figures to o.Out, of which the last line is for
// scripts. A wrong answer is an error.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	logs := o.Logs
	if len(logs) == 0 {
		dir, err := os.MkdirTemp(o.Dir, "blockyard-bench-index-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		if logs, err = o.makeLogs(dir); err != nil {
			return err
		}
	}
	if err := o.printSetting(); err != nil {
		return err
	}
	decisions := make(results)
	for _, p := range decisionParts() {
		if decisions[p], err = o.measure(ctx, p, ""); err != nil {
			return err
		}
	}
	var last results
	for i, path := range logs {
		if last, err = o.measureLog(ctx, path); err != nil {
			return err
		}
		if err := o.printLog(i == 0, path, last); err != nil {
			return err
		}
	}
	if err := o.printDecisions(decisions); err != nil {
		return err
	}
	_, err = fmt.Fprintln(o.Out, lastLine(last, decisions))
	return err
}

// makeLogs generates the four default logs in dir and returns their paths, the one for the last
// line last.
func (o *Options) makeLogs(dir string) ([]string, error) {
	var paths []string
	for _, l := range []struct {
		name string
		o    loggen.Options
	}{{"worst.log", o.Generate.Worst()}, {"unfriendly.log", o.Generate.Unfriendly()},
		{"one-block.log", o.Generate.OneBlock()}, {"generated.log", o.Generate}} {
		path := filepath.Join(dir, l.name)
		if err := MakeLog(path, l.o); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// MakeLog writes the op log of o to a file.
func MakeLog(path string, o loggen.Options) error {
	words, err := loggen.Generate(o)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return oplog.Save(path, words)
}

// measureLog returns the medians of every part that needs a log, measured on the log at path.
// Repeated parts take turns, so that a slow phase of the machine hits each alike.
func (o *Options) measureLog(ctx context.Context, path string) (results, error) {
	all := make(map[Part][]Figures)
	for round := range o.Rounds {
		for _, p := range logParts() {
			if round > 0 && !p.repeated() {
				continue
			}
			f, err := o.measure(ctx, p, path)
			if err != nil {
				return nil, err
			}
			all[p] = append(all[p], f)
		}
	}
	out := make(results)
	for p, rounds := range all {
		out[p] = medians(rounds)
	}
	return out, nil
}

// medians returns the median over the rounds of each figure, separately.
func medians(rounds []Figures) Figures {
	out := make(Figures)
	for name := range rounds[0] {
		var values []float64
		for _, f := range rounds {
			values = append(values, f[name])
		}
		slices.Sort(values)
		out[name] = values[len(values)/2]
	}
	return out
}
