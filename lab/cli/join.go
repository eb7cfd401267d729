package cli

import (
	"cmp"
	"context"
	"io"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/internal/bytesize"
	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/join"
)

// benchJoinCmd measures a late join.
type benchJoinCmd struct {
	Agents     int           `help:"Agents of the fleet, 1 to 4096." default:"1000"`
	Engines    int           `help:"Engines of each agent, 1 to 64." default:"8"`
	Blocks     int           `help:"Blocks of each engine and of each agent's pool, 1 to 1048576." default:"2000"`
	Link       bytesize.Size `help:"Bytes a second of the router's link." default:"50MiB"`
	Restart    bool          `help:"Then stop the router, and measure how a new one starts from the stored snapshot."`
	Missed     int           `help:"Documents that each publisher replaces while no router runs, 1 to 1000; a document has up to 250 blocks." default:"4"`
	Patience   time.Duration `help:"Longest time of the fleet's start, and of the join." default:"10m"`
	NATSServer string        `name:"nats-server" help:"The nats-server program (default: the one beside this program)." type:"path" placeholder:"FILE"`
	Dir        string        `help:"Directory of logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (benchJoinCmd) Help() string {
	return `A process announces a fleet of agents over a real NATS server, with a connection for each agent and a publisher for each engine and pool. Then a router starts behind a proxy that carries a bounded number of bytes a second. The last line has the time until the router knows every block, the link's own time for as many bytes, the router's peak memory, and cuts: lost connections, dropped messages and dumps that broke off. The exit status is 1 with a cut.

With --restart the router reads events from a JetStream stream. It is stopped when it knows every block, and stores a snapshot. Each publisher then replaces blocks while no router runs. A new router starts from the snapshot and reads the events that it missed. The last line has the time until the new router knows every block; wrong counts the publishers whose blocks differ from a dump of its index, and fails the run.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *benchJoinCmd) Validate() error {
	o := c.options(cluster.Programs{}, io.Discard)
	return cmp.Or(moreThanZero(c.Agents != 0, "agents", c.Agents), moreThanZero(c.Engines != 0, "engines", c.Engines),
		moreThanZero(c.Blocks != 0, "blocks", c.Blocks), moreThanZero(c.Link != 0, "link", 0),
		moreThanZero(c.Missed != 0, "missed", c.Missed), o.Validate())
}

// Run measures the join and prints its figures.
func (c *benchJoinCmd) Run(ctx context.Context, stdout io.Writer, r *root) error {
	run, err := r.programs()
	if err != nil {
		return err
	}
	return join.Run(ctx, c.options(run, stdout))
}

func (c *benchJoinCmd) options(run cluster.Programs, stdout io.Writer) join.Options {
	return join.Options{
		Agents: c.Agents, Engines: c.Engines, Blocks: c.Blocks, LinkBytes: int(c.Link),
		Restart: c.Restart, Missed: c.Missed, Patience: c.Patience,
		Programs: run, NATSServer: natsServer(c.NATSServer, run.Lab), Dir: c.Dir, Out: stdout,
	}
}

// joinFleetCmd is the process with the publishers of a fleet.
type joinFleetCmd struct {
	NATS    string `name:"nats" env:"BLOCKYARD_NATS" required:"" help:"URL of the NATS server."`
	Cluster string `required:"" help:"Name of the deployment."`
	Agents  int    `required:"" help:"Agents."`
	Engines int    `required:"" help:"Engines of each agent."`
	Blocks  int    `required:"" help:"Blocks of each engine and pool."`
}

// Run publishes until it is ended.
func (c *joinFleetCmd) Run(ctx context.Context, stdout io.Writer) error {
	return join.Fleet(ctx, join.FleetOptions{URL: c.NATS, Cluster: c.Cluster, Agents: c.Agents, Engines: c.Engines, Blocks: c.Blocks}, os.Stdin, stdout)
}
