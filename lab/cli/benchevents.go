package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"

	"github.com/blockyard-ai/blockyard/lab/events"
)

// benchEventsCmd measures the path of events.
type benchEventsCmd struct {
	Blocks     int     `help:"Blocks that are tracked." default:"1000000"`
	Rate       int     `help:"Blocks that the engine stores in a second, and removes besides, while the age of events is measured." default:"100000"`
	Seconds    float64 `help:"How long that goes on." default:"10"`
	NATSServer string  `name:"nats-server" help:"The nats-server program (default: the one beside this program)." type:"path" placeholder:"FILE"`
	Dir        string  `help:"Directory of sockets and logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
	HostDir    string  `help:"Directory of the host tier, in memory (default: /dev/shm)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (benchEventsCmd) Help() string {
	return `What one core makes of an engine's events, from bytes that arrive by ZMQ to envelopes; what a tracked block costs in memory; and how old an event is when a router knows it, through agent, NATS server and router. All are processes of their own.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *benchEventsCmd) Validate() error {
	switch {
	case !(c.Seconds > 0):
		return fmt.Errorf("--seconds %g: want more than 0", c.Seconds)
	case c.Blocks == 0:
		return fmt.Errorf("--blocks 0: want more than 0")
	case c.Rate == 0:
		return fmt.Errorf("--rate 0: want more than 0")
	}
	o := c.options(cluster.Programs{}, io.Discard)
	return o.Validate()
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
