package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command"

	"github.com/blockyard-ai/blockyard/lab/stress"
)

// stressCmd runs random operations on the block manager under faults.
type stressCmd struct {
	Seconds float64 `help:"How long to go on." default:"30"`
	Seed    uint64  `help:"Selects the operations, the faults and the losses (default: a random one, which is shown)."`
	Config  string  `help:"Run one configuration only, without the negative control." placeholder:"NAME"`
	Ops     int     `help:"Operations of one stream (default 1000)." default:"0" hidden:""`
	Dir     string  `help:"Where disk tiers go (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir string  `help:"Where host tiers go, in memory (default: /dev/shm)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (stressCmd) Help() string {
	return `Streams of random operations run under many configurations: tiers of all sizes, faults of the disk, agents that are closed and killed, losses of power, bits that flip. Each block that is served must have the bytes that were committed, or be a miss. First the comparison of checksums is turned off, which must show wrong bytes: a run that cannot see them proves nothing.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *stressCmd) Validate() error {
	if c.Seconds <= 0 {
		return fmt.Errorf("--seconds %g: want more than 0", c.Seconds)
	}
	o := c.options(io.Discard)
	return o.Validate()
}

// Run runs and reports.
func (c *stressCmd) Run(ctx context.Context, stdout io.Writer) error {
	o := c.options(stdout)
	f, ok := stdout.(*os.File)
	o.Live = ok && command.IsTerminal(f)
	_, err := stress.Run(ctx, o)
	return err
}

func (c *stressCmd) options(stdout io.Writer) stress.Options {
	return stress.Options{
		Duration: time.Duration(c.Seconds * float64(time.Second)), Seed: c.Seed, Config: c.Config, Ops: c.Ops,
		Dir: c.Dir, HostDir: c.HostDir, Out: stdout,
	}
}
