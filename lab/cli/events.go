package cli

import (
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/events"
	"github.com/blockyard-ai/blockyard/lab/events/soak"
)

// benchEventsCmd measures the path of events.
type benchEventsCmd struct {
	Blocks     int     `help:"Blocks that are tracked." default:"1000000"`
	Rate       int     `help:"Blocks that the engine stores a second, and removes a second, while the age of events is measured." default:"100000"`
	Seconds    float64 `help:"Duration of that measurement." default:"10"`
	NATSServer string  `name:"nats-server" help:"The nats-server program (default: the one beside this program)." type:"path" placeholder:"FILE"`
	Dir        string  `help:"Directory of sockets and logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir    string  `help:"Directory of the host tier, in memory (default: /dev/shm)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (benchEventsCmd) Help() string {
	return `Three figures: how fast one core turns an engine's events from ZMQ bytes into envelopes; the memory of a tracked block; the age of an event when a router knows it. Engine, agent, NATS server and router are processes.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *benchEventsCmd) Validate() error {
	o := c.options(cluster.Programs{}, io.Discard)
	return cmp.Or(moreThanZero(c.Seconds > 0, "seconds", c.Seconds), moreThanZero(c.Blocks != 0, "blocks", c.Blocks),
		moreThanZero(c.Rate != 0, "rate", c.Rate), o.Validate())
}

// Run measures and prints.
func (c *benchEventsCmd) Run(ctx context.Context, stdout io.Writer, r *root) error {
	run, err := r.programs()
	if err != nil {
		return err
	}
	return events.Run(ctx, c.options(run, stdout))
}

func (c *benchEventsCmd) options(run cluster.Programs, stdout io.Writer) events.Options {
	return events.Options{
		Blocks: c.Blocks, Rate: c.Rate, Duration: time.Duration(c.Seconds * float64(time.Second)),
		Programs: run, Consumer: []string{run.Lab, "bench", "event-consumer"}, NATSServer: natsServer(c.NATSServer, run.Lab),
		Dir: c.Dir, HostDir: c.HostDir, Out: stdout,
	}
}

// eventConsumerCmd is the process of the wire-to-wire figures.
type eventConsumerCmd struct{}

// Run consumes until standard input ends.
func (eventConsumerCmd) Run(ctx context.Context, stdout io.Writer) error {
	return events.Consume(ctx, os.Stdin, stdout)
}

// soakEventsCmd breaks the path of events and compares the router's index with the
// blocks that are held.
type soakEventsCmd struct {
	Seconds    float64 `help:"Duration in seconds." default:"60"`
	Rounds     int     `help:"Rounds to make, however long they take (default: as many as fit --seconds)." default:"0" hidden:""`
	Seed       *uint64 `help:"Seed of faults and times (default: a random one, which is printed)."`
	NoRepair   bool    `name:"no-repair" help:"Refuse the router's questions for missed events: the run must diverge, and fails."`
	NATSServer string  `name:"nats-server" help:"The nats-server program (default: the one beside this program)." type:"path" placeholder:"FILE"`
	Dir        string  `help:"Directory of disk tiers and logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir    string  `help:"Directory of host tiers, in memory (default: /dev/shm)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (soakEventsCmd) Help() string {
	return `Engines that leave out event frames, agents, a NATS server and a router run as processes. All are killed and started again. The router is paused so that messages pile up. Whenever the load stops and everything has come to rest, the router's index is compared with the blocks that engines and agents hold. A short run goes first in which the router may not ask for missed events; it must diverge. The exit status is 1 when anything differs, and when the run proves nothing.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *soakEventsCmd) Validate() error {
	o := c.options(cluster.Programs{}, 0, io.Discard)
	return cmp.Or(moreThanZero(c.Seconds > 0, "seconds", c.Seconds), o.Validate())
}

// Run runs the soak of the event path and prints its progress: it breaks connections and
// processes, and compares the router's index with the truth. Without --seed the run has a random
// seed.
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
