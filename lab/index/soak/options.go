package soak

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/index/loggen"
)

const (
	// The defaults of the options of the same names.
	DefaultDuration = 10 * time.Minute
	DefaultRate     = 100_000
	DefaultLookups  = 5_000
	DefaultSample   = 10 * time.Second
	DefaultMaxSlope = 1.0

	// MinJudged is the shortest run that is judged by slopes and rate.
	MinJudged = 2 * time.Minute

	maxDuration = 24 * time.Hour
	maxRate     = 10_000_000
	maxLookups  = 1_000_000
	maxSamples  = 100_000
)

// Options of a run. The zero value of a field with a default is that default.
type Options struct {
	// Duration of the run, up to 24 h, default DefaultDuration.
	Duration time.Duration
	// Rate is the number of blocks stored or removed a second, 1..10,000,000, default
	// DefaultRate. Lookups is the number of prompts looked up a second, 1..1,000,000,
	// default DefaultLookups. One prompt in ten is sent to a worker.
	Rate, Lookups int
	// Workers and Pools are the numbers of owners, 2..4,096 and 1..1,024 [32, 8]. Pool
	// is the number of blocks that each can hold [8,192].
	Workers, Pools, Pool int
	// Seed chooses prompts and instants.
	Seed uint64
	// Sample is the time between two samples, default DefaultSample.
	Sample time.Duration
	// MaxSlope is the largest growth of heap and resident memory a minute, in per cent,
	// 0..1,000, default DefaultMaxSlope.
	MaxSlope float64
	// Out gets the samples and figures.
	Out io.Writer
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	fill := func(v *int, fallback int) {
		if *v == 0 {
			*v = fallback
		}
	}
	fill(&o.Rate, DefaultRate)
	fill(&o.Lookups, DefaultLookups)
	fill(&o.Workers, 32)
	fill(&o.Pools, 8)
	fill(&o.Pool, 8192)
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	o.Sample = cmp.Or(o.Sample, DefaultSample)
	o.MaxSlope = cmp.Or(o.MaxSlope, DefaultMaxSlope)
	o.Out = cmp.Or(o.Out, io.Discard)
	return o
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	c := o.withDefaults()
	switch {
	case c.Duration < 0 || c.Duration > maxDuration:
		return fmt.Errorf("duration %s: want 0s (default %s) to %s", c.Duration, DefaultDuration, maxDuration)
	case c.Rate < 1 || c.Rate > maxRate:
		return fmt.Errorf("rate %d: want 1 to %d blocks a second", c.Rate, maxRate)
	case c.Lookups < 1 || c.Lookups > maxLookups:
		return fmt.Errorf("lookups %d: want 1 to %d a second", c.Lookups, maxLookups)
	case c.Workers < 2 || c.Workers > 4096:
		return fmt.Errorf("workers %d: want 2 to 4096", c.Workers)
	case c.Pools < 1 || c.Pools > 1024:
		return fmt.Errorf("pools %d: want 1 to 1024", c.Pools)
	case c.Sample < time.Millisecond || c.Duration/c.Sample > maxSamples:
		return fmt.Errorf("sample %s: want 1ms at least, and %d samples at most", c.Sample, maxSamples)
	case !(c.MaxSlope > 0 && c.MaxSlope <= 1000):
		return fmt.Errorf("max slope %g: want more than 0 and at most 1000 per cent a minute", c.MaxSlope)
	}
	e := c.engines()
	return e.Validate()
}

// engines returns the behaviour of owners and prompts.
func (o *Options) engines() loggen.Options {
	return loggen.Options{Seed: o.Seed, Pool: o.Pool, Sessions: 512, Prefixes: 64, MaxPrompt: 2048, Forks: 0.1, Align: 1}
}
