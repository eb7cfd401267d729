package cli

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/blockyard-ai/blockyard/lab/cluster"

	"github.com/blockyard-ai/blockyard/lab/killloop"
)

// killLoopCmd kills agents and engines and checks what is left.
type killLoopCmd struct {
	Kills   int     `short:"n" help:"How often the agent is killed." default:"50"`
	Seed    *uint64 `help:"Chooses instants and victims (default: a random one, which is printed)."`
	Dir     string  `help:"Directory of the disk tier and the logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir string  `help:"Directory of the host tier, in memory." default:"/dev/shm" type:"path"`
}

// Help implements kong's HelpProvider.
func (killLoopCmd) Help() string {
	return `An agent and three engines run as processes of their own; the agent is killed (kill -9) at random instants while engines copy into and out of its memory, engines now and then too. After every kill, what the files say is sealed must be found again with the right bytes, and no slot that an engine still writes may be given to anybody. The exit status is 1 when that fails, and when the run proves nothing because no kill met a copy.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *killLoopCmd) Validate() error {
	if c.Kills < 1 {
		return fmt.Errorf("--kills %d: want 1 or more", c.Kills)
	}
	o := c.options(cluster.Programs{}, 0, io.Discard)
	return o.Validate()
}

// Run kills, checks and prints.
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
