package index

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
)

// results are the figures of all parts, of a repeated part medians.
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

// makeLogs makes the logs that are measured when none is given.
func (o *Options) makeLogs(dir string) ([]string, error) {
	var paths []string
	for _, l := range []struct {
		name string
		o    loggen.Options
	}{{"worst.log", o.Generate.Worst()}, {"unfriendly.log", o.Generate.Unfriendly()}, {"generated.log", o.Generate}} {
		path := filepath.Join(dir, l.name)
		if err := MakeLog(path, l.o); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// MakeLog writes the op log that o asks for to a file.
func MakeLog(path string, o loggen.Options) error {
	words, err := loggen.Generate(o)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return oplog.Save(path, words)
}

// measureLog measures every part that needs a log. Rounds go over all repeated
// parts in turn, so that a machine's mood hits each alike.
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

// medians is the median of each figure by itself.
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
