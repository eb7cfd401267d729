package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command/process"
	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/killloop"
	"github.com/blockyard-ai/blockyard/lab/stress"
)

// stressCmd runs random operations on the block manager under faults.
type stressCmd struct {
	Seconds float64 `help:"Duration in seconds." default:"30"`
	Seed    uint64  `help:"Selects the operations, the faults and the losses (default: a random one, which is shown)."`
	Config  string  `help:"Run one configuration only, without the negative control." placeholder:"NAME"`
	Ops     int     `help:"Operations of one stream (default 1000)." default:"0" hidden:""`
	Encrypt bool    `help:"Encrypt the disk tiers of all configurations."`
	Dir     string  `help:"Where disk tiers go (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir string  `help:"Where host tiers go, in memory (default: /dev/shm)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (stressCmd) Help() string {
	return `Streams of random operations run under many configurations: tiers of all sizes, disk faults, closed and killed agents, losses of power, flipped bits. Each block that is served must have the bytes that were committed, or be a miss. A negative control comes first: it flips bits of verified blocks, and a run whose check misses one is blind and fails.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *stressCmd) Validate() error {
	o := c.options(io.Discard)
	return cmp.Or(moreThanZero(c.Seconds > 0, "seconds", c.Seconds), o.Validate())
}

// Run runs and reports.
func (c *stressCmd) Run(ctx context.Context, stdout io.Writer) error {
	o := c.options(stdout)
	f, ok := stdout.(*os.File)
	o.Live = ok && process.IsTerminal(f)
	_, err := stress.Run(ctx, o)
	return err
}

func (c *stressCmd) options(stdout io.Writer) stress.Options {
	return stress.Options{
		Duration: time.Duration(c.Seconds * float64(time.Second)), Seed: c.Seed, Config: c.Config, Ops: c.Ops, Encrypt: c.Encrypt,
		Dir: c.Dir, HostDir: c.HostDir, Out: stdout,
	}
}

// killLoopCmd kills agents and engines and checks that sealed blocks come back.
type killLoopCmd struct {
	Kills   int     `short:"n" help:"Kills of the agent." default:"50"`
	Seed    *uint64 `help:"Seed of times and victims (default: a random one, which is printed)."`
	Dir     string  `help:"Directory of the disk tier and the logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir string  `help:"Directory of the host tier, in memory." default:"/dev/shm" type:"path"`
}

// Help implements kong's HelpProvider.
func (killLoopCmd) Help() string {
	return `An agent and three engines run as processes. The agent is killed (kill -9) at random instants while engines copy into and out of its memory. Now and then an engine is killed too. After every kill each sealed block must be found again with the right bytes, and no slot that an engine still writes may be granted. The exit status is 1 when that fails, and when the run proves nothing because no kill met a copy.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *killLoopCmd) Validate() error {
	if c.Kills < 1 {
		return fmt.Errorf("--kills %d: want 1 or more", c.Kills)
	}
	o := c.options(cluster.Programs{}, 0, io.Discard)
	return o.Validate()
}

// Run runs the kill loop and prints its progress: it kills engines and agents, and checks every
// byte that is served afterwards. Without --seed the run has a random seed.
func (c *killLoopCmd) Run(ctx context.Context, stdout io.Writer, r *root) error {
	run, err := r.programs()
	if err != nil {
		return err
	}
	seed := rand.Uint64N(1 << 32)
	override(&seed, c.Seed)
	_, err = killloop.Run(ctx, c.options(run, seed, stdout))
	return err
}

func (c *killLoopCmd) options(run cluster.Programs, seed uint64, stdout io.Writer) killloop.Options {
	return killloop.Options{
		Kills: c.Kills, Seed: seed, Dir: c.Dir, HostDir: c.HostDir, Out: stdout,
		Programs: run, Child: []string{run.Lab, "bench", "kill-loop-child"},
	}
}

// killLoopChildCmd is an engine or a checker of a kill loop.
type killLoopChildCmd struct{}

// Run serves until standard input ends.
func (killLoopChildCmd) Run(ctx context.Context, stdout io.Writer) error {
	return killloop.Serve(ctx, os.Stdin, stdout)
}
