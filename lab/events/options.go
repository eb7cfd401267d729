package events

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// The defaults of the options of the same names.
	DefaultBlocks   = 1_000_000
	DefaultRate     = 100_000
	DefaultDuration = 10 * time.Second

	maxBlocks   = 8 << 20
	maxRate     = 10_000_000
	maxDuration = 10 * time.Minute

	// wireRounds is the number of measurements of wire to wire, odd.
	wireRounds = 3

	blockSize = 16
	// A batch has chains of chainBlocks blocks: prompts of 512 tokens that one step has
	// computed.
	chains, chainBlocks = 4, 32
	batchBlocks         = chains * chainBlocks
)

// Options of a run. The zero value of a field with a default is that default.
type Options struct {
	// Blocks is the number of tracked blocks, 128..8388608, default DefaultBlocks.
	Blocks int
	// Rate is the number of blocks that the engine stores a second, and removes a
	// second, while the age of events is measured; 128..10000000, default DefaultRate.
	// Duration is the time of that measurement, default DefaultDuration.
	Rate     int
	Duration time.Duration
	// Programs must be set. Consumer is the command whose process calls Consume,
	// NATSServer a nats-server program.
	cluster.Programs
	Consumer   []string
	NATSServer string
	// Dir and HostDir are the parents of cluster.MakeDirs.
	Dir, HostDir string
	// Out gets the figures.
	Out io.Writer
}

// Validate checks the fields; the error names the first bad one.
func (o *Options) Validate() error {
	c := o.withDefaults()
	switch {
	case c.Blocks < batchBlocks || c.Blocks > maxBlocks:
		return fmt.Errorf("blocks %d: want %d to %d", c.Blocks, batchBlocks, maxBlocks)
	case c.Rate < batchBlocks || c.Rate > maxRate:
		return fmt.Errorf("rate %d: want %d to %d blocks a second", c.Rate, batchBlocks, maxRate)
	case c.Duration < 0 || c.Duration > maxDuration:
		return fmt.Errorf("duration %s: want 0s (default %s) to %s", c.Duration, DefaultDuration, maxDuration)
	}
	return nil
}

// withDefaults returns o with the defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Blocks = cmp.Or(o.Blocks, DefaultBlocks)
	o.Rate = cmp.Or(o.Rate, DefaultRate)
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	o.Out = cmp.Or(o.Out, io.Discard)
	return o
}
