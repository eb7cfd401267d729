package cli

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/lab/index/soak"
)

// soakIndexCmd runs index and scheduler for a long time.
type soakIndexCmd struct {
	Seconds  float64 `help:"How long to go on." default:"600"`
	Rate     int     `help:"Blocks that are stored or removed in a second." default:"100000"`
	Lookups  int     `help:"Prompts that are looked up in a second; one in ten is sent to a worker." default:"5000"`
	Workers  int     `help:"Workers." default:"32"`
	Pools    int     `help:"Pools that workers belong to." default:"8"`
	Pool     int     `help:"Blocks that each worker and each pool can hold." default:"8192"`
	Sample   float64 `help:"Seconds between two samples of heap and resident memory." default:"10"`
	MaxSlope float64 `help:"What heap and resident memory may grow by in a minute, in per cent." default:"1"`
	Seed     *uint64 `help:"Chooses prompts and instants (default: a random one, which is printed)."`
}

// Help implements kong's HelpProvider.
func (soakIndexCmd) Help() string {
	return `Engines and pools store and remove blocks at a fixed rate; meanwhile prompts are looked up and sent to workers, owners leave and others come, dumps replace an owner's blocks, and owners lose all of them. The exit status is 1 when heap or resident memory grows after the first fifth of the run, and when the index does not hold in the end exactly what it was told. Runs of less than two minutes are not judged by their slopes.`
}

// Validate implements kong's interface; its errors are errors of usage. It
// refuses zeros that soak.Options would take for "the default".
func (c *soakIndexCmd) Validate() error {
	for _, f := range []struct {
		flag  string
		value float64
	}{
		{"seconds", c.Seconds}, {"rate", float64(c.Rate)}, {"lookups", float64(c.Lookups)}, {"workers", float64(c.Workers)},
		{"pools", float64(c.Pools)}, {"pool", float64(c.Pool)}, {"sample", c.Sample}, {"max-slope", c.MaxSlope},
	} {
		if !(f.value > 0) {
			return fmt.Errorf("--%s %g: want more than 0", f.flag, f.value)
		}
	}
	o := c.options(0, io.Discard)
	return o.Validate()
}

// Run soaks, compares and prints.
func (c *soakIndexCmd) Run(ctx context.Context, stdout io.Writer) error {
	seed := rand.Uint64N(1 << 32)
	override(&seed, c.Seed)
	return soak.Run(ctx, c.options(seed, stdout))
}

func (c *soakIndexCmd) options(seed uint64, stdout io.Writer) soak.Options {
	return soak.Options{
		Duration: time.Duration(c.Seconds * float64(time.Second)), Rate: c.Rate, Lookups: c.Lookups,
		Workers: c.Workers, Pools: c.Pools, Pool: c.Pool, Seed: seed,
		Sample: time.Duration(c.Sample * float64(time.Second)), MaxSlope: c.MaxSlope, Out: stdout,
	}
}
