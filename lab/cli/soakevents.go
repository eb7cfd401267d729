package cli

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"

	"github.com/blockyard-ai/blockyard/lab/events/soak"
)

// soakEventsCmd breaks the path of events and compares what is left.
type soakEventsCmd struct {
	Seconds    float64 `help:"How long to go on." default:"60"`
	Rounds     int     `help:"Rounds to make, whatever the time they take (default: as many as there is time for)." default:"0" hidden:""`
	Seed       *uint64 `help:"Chooses faults and instants (default: a random one, which is printed)."`
	NoRepair   bool    `name:"no-repair" help:"Refuse the router's questions for what it missed: the run must diverge, and fails."`
	NATSServer string  `name:"nats-server" help:"The nats-server program (default: the one beside this program)." type:"path" placeholder:"FILE"`
	Dir        string  `help:"Directory of disk tiers and logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir    string  `help:"Directory of host tiers, in memory (default: /dev/shm)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (soakEventsCmd) Help() string {
	return `Engines that leave out event frames, agents, a NATS server and a router run as processes of their own; all are killed and started again, the router is stopped so that messages pile up. Whenever the load stops and everything has come to rest, every block that the router believes in is compared with what engines and agents hold. A short run in which the router may not ask for what it missed goes before, and must diverge. The exit status is 1 when anything differs, and when the run proves nothing.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *soakEventsCmd) Validate() error {
	if !(c.Seconds > 0) {
		return fmt.Errorf("--seconds %g: want more than 0", c.Seconds)
	}
	o := c.options(cluster.Programs{}, 0, io.Discard)
	return o.Validate()
}

// Run breaks, compares and prints.
func (c *soakEventsCmd) Run(ctx context.Context, stdout io.Writer, r *root) error {
	run, err := r.programs()
	if err != nil {
		return err
	}
	seed := rand.Uint64N(1 << 32)
	override(&seed, c.Seed)
	return soak.Run(ctx, c.options(run, seed, stdout))
}

func (c *soakEventsCmd) options(run cluster.Programs, seed uint64, stdout io.Writer) soak.Options {
	return soak.Options{
		Duration: time.Duration(c.Seconds * float64(time.Second)), Rounds: c.Rounds, Seed: seed, NoRepair: c.NoRepair,
		Programs: run, NATSServer: natsServer(c.NATSServer, run.Lab), Dir: c.Dir, HostDir: c.HostDir, Out: stdout,
	}
}

// natsServer returns the program to run as NATS server: the one that was given, or the
// one beside exe.
func natsServer(given, exe string) string {
	if given != "" {
		return given
	}
	return filepath.Join(filepath.Dir(exe), "nats-server")
}
