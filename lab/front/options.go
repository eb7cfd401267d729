package front

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// Defaults of the options of the same names.
const (
	DefaultRate    = 150
	DefaultRounds  = 3
	DefaultStreams = 1000
)

// DefaultDuration is the default of Options.Duration.
const DefaultDuration = 10 * time.Second

const (
	maxRate    = 20_000
	maxRounds  = 99
	maxStreams = 20_000

	// model is the name that the stubs serve, blockSize the tokens of their blocks,
	// cacheBlocks the blocks that a stub can hold.
	model       = "stub"
	blockSize   = 16
	cacheBlocks = 20_000
	stubs       = 2

	// A stub sends its first chunk after firstDelay and the others chunkDelay apart.
	firstDelay = 10 * time.Millisecond
	chunkDelay = 10 * time.Millisecond
	chunks     = 20

	// late is how much later than without a router a request may end before it counts as an
	// error.
	late = time.Second
)

// Options of a run. The zero value of a field with a default is that default.
type Options struct {
	// Rate is the number of requests a second, 1..20000, default DefaultRate.
	Rate float64
	// Duration is the measured time of a router in a round, default DefaultDuration.
	Duration time.Duration
	// Rounds is the number of rounds, 1..99, default DefaultRounds.
	Rounds int
	// Streams is how many open streams memory is measured with, 1..20000, default
	// DefaultStreams. SkipStreams and SkipSweep leave out these parts.
	Streams     int
	SkipStreams bool
	SkipSweep   bool
	// Only are the routers to measure, by name; empty means all.
	Only []string
	// Programs must be set. Stub is the command whose process calls Serve.
	cluster.Programs
	Stub []string
	// PeerBin has the programs of other routers. Empty leaves them out.
	PeerBin string
	// Dynamo is a python that can import NVIDIA Dynamo, and the module live.bench_worker. Empty
	// leaves Dynamo out. NoDynamo is the reason for the table; empty leaves out the row too.
	Dynamo, NoDynamo string
	// Dir is the parent of the directory of logs.
	Dir string
	// Out gets the figures, Progress a line for each measurement; both may be nil.
	Out, Progress io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	c := o.withDefaults()
	switch {
	case c.Rate < 1 || c.Rate > maxRate:
		return fmt.Errorf("rate %g: want 1 to %d requests a second", c.Rate, maxRate)
	case c.Duration < time.Second || c.Duration > 10*time.Minute:
		return fmt.Errorf("duration %s: want 1s to 10m", c.Duration)
	case c.Rounds < 1 || c.Rounds > maxRounds:
		return fmt.Errorf("rounds %d: want 1 to %d", c.Rounds, maxRounds)
	case c.Streams < 1 || c.Streams > maxStreams:
		return fmt.Errorf("streams %d: want 1 to %d", c.Streams, maxStreams)
	}
	for _, name := range c.Only {
		if !slices.ContainsFunc(contenders, func(c contender) bool { return c.name == name }) {
			return fmt.Errorf("only %q: want some of %s", name, strings.Join(names(), ", "))
		}
	}
	return nil
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Rate = cmp.Or(o.Rate, DefaultRate)
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	o.Rounds = cmp.Or(o.Rounds, DefaultRounds)
	o.Streams = cmp.Or(o.Streams, DefaultStreams)
	o.Out = cmp.Or(o.Out, io.Discard)
	o.Progress = cmp.Or(o.Progress, io.Discard)
	return o
}

// chosen returns the contenders of the table.
func (o *Options) chosen() (all []contender) {
	for _, c := range contenders {
		if o.has(&c) && (len(o.Only) == 0 || slices.Contains(o.Only, c.name)) {
			all = append(all, c)
		}
	}
	return all
}

// has reports whether the contender has a row.
func (o *Options) has(c *contender) bool {
	switch {
	case c.dynamo:
		return o.Dynamo != "" || o.NoDynamo != ""
	case c.peer:
		return o.PeerBin != ""
	}
	return true
}

// missing returns why the contender cannot run; empty when it can.
func (o *Options) missing(c *contender) string {
	if c.dynamo && o.Dynamo == "" {
		return o.NoDynamo
	}
	return ""
}
