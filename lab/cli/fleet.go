package cli

import (
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/fleet"
)

// soakCmd has the fault tests that take a while.
type soakCmd struct {
	Fleet soakFleetCmd `cmd:"" help:"Kill routers, agents and NATS under load, and compare the routers' bookings."`
}

// soakFleetCmd kills processes of a fleet of routers and compares their bookings.
type soakFleetCmd struct {
	Seconds    float64       `help:"Duration in seconds." default:"60"`
	Routers    int           `help:"Routers that share their bookings, 2 to 16." default:"3"`
	Rounds     int           `help:"Rounds to make, however long they take (default: as many as fit --seconds)." default:"0" hidden:""`
	Patience   time.Duration `help:"Time beyond five seconds of quiet that the routers have to agree." default:"1s" hidden:""`
	Seeds      int           `help:"Simulated runs whose times to the first token are compared with those of one router; 0 is none. Few runs say little of a 99th percentile." default:"20"`
	Seed       *uint64       `help:"Seed of faults and times (default: a random one, which is printed)."`
	NATSServer string        `name:"nats-server" help:"The nats-server program (default: the one beside this program)." type:"path" placeholder:"FILE"`
	Dir        string        `help:"Directory of disk tiers and logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir    string        `help:"Directory of host tiers, in memory (default: /dev/shm)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (soakFleetCmd) Help() string {
	return `Routers that share their bookings, agents, simulated engines and a NATS server run as processes. Clients book requests at any router and report their progress to any other. Routers, agents and the NATS server are killed or stopped, and started again. After five seconds without load each router must have booked every live request once. The exit status is 1 when a router differs, when simulated routers are more than 3 % slower than one, and when the run proves nothing.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *soakFleetCmd) Validate() error {
	o := c.options(cluster.Programs{}, 0, io.Discard)
	return cmp.Or(moreThanZero(c.Seconds > 0, "seconds", c.Seconds), moreThanZero(c.Routers != 0, "routers", c.Routers), o.Validate())
}

// Run runs the soak and prints its progress. Without --seed the run has a random seed.
func (c *soakFleetCmd) Run(ctx context.Context, stdout io.Writer, r *root) error {
	run, err := r.programs()
	if err != nil {
		return err
	}
	seed := rand.Uint64N(1 << 32)
	override(&seed, c.Seed)
	return fleet.Run(ctx, c.options(run, seed, stdout))
}

func (c *soakFleetCmd) options(run cluster.Programs, seed uint64, stdout io.Writer) fleet.Options {
	return fleet.Options{
		Duration: time.Duration(c.Seconds * float64(time.Second)), Rounds: c.Rounds, Routers: c.Routers, Patience: c.Patience, Seeds: c.Seeds, Seed: seed,
		Programs: run, NATSServer: natsServer(c.NATSServer, run.Lab), Dir: c.Dir, HostDir: c.HostDir, Out: stdout,
	}
}
