package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/front"
)

// benchFrontCmd measures front doors.
type benchFrontCmd struct {
	Rate        float64  `help:"Requests a second." default:"150"`
	Seconds     float64  `help:"Duration of one measurement." default:"10"`
	Rounds      int      `help:"Rounds; the medians count." default:"3"`
	Streams     int      `help:"Open streams that memory is measured with." default:"1000"`
	SkipStreams bool     `name:"skip-streams" help:"Leave the memory of open streams out."`
	SkipSweep   bool     `name:"skip-sweep" help:"Leave the highest rate out."`
	Only        []string `help:"Routers to measure, such as none,blockyard." placeholder:"NAME"`
	Peers       string   `help:"Directory of the programs vllm-router and smg (default: only ours)." type:"path" placeholder:"DIR"`
	Dynamo      string   `help:"A python that can import NVIDIA Dynamo and live.bench_worker (default: without Dynamo)." type:"path" placeholder:"PYTHON"`
	NoDynamo    string   `name:"dynamo-missing" help:"Why Dynamo is not measured, for the table." placeholder:"TEXT"`
	Dir         string   `help:"Directory of logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (benchFrontCmd) Help() string {
	return `Routers take turns before the same stub workers under the same load. Measured are the time that a router adds to the first byte and to each chunk, its processor time and memory, and the highest rate with less than 1 % errors. The row "none" is the way without a router.`
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *benchFrontCmd) Validate() error {
	o := c.options(cluster.Programs{}, nil)
	return o.Validate()
}

// Run measures and prints.
func (c *benchFrontCmd) Run(ctx context.Context, stdout io.Writer, r *root) error {
	run, err := r.programs()
	if err != nil {
		return err
	}
	return front.Run(ctx, c.options(run, stdout))
}

func (c *benchFrontCmd) options(run cluster.Programs, stdout io.Writer) front.Options {
	return front.Options{
		Rate: c.Rate, Duration: time.Duration(c.Seconds * float64(time.Second)), Rounds: c.Rounds, Streams: c.Streams,
		SkipStreams: c.SkipStreams, SkipSweep: c.SkipSweep, Only: c.Only, PeerBin: c.Peers, Dynamo: c.Dynamo, NoDynamo: c.NoDynamo, Dir: c.Dir,
		Programs: run, Stub: []string{run.Lab, "bench", "front-stub"}, Out: stdout, Progress: os.Stderr,
	}
}

// frontStubCmd is a stub worker server.
type frontStubCmd struct{}

// Run serves until standard input ends.
func (frontStubCmd) Run(ctx context.Context, stdout io.Writer) error {
	return front.Serve(ctx, os.Stdin, stdout)
}

// benchIdleCmd measures idle connections.
type benchIdleCmd struct {
	Connections int     `help:"Idle connections." default:"10000"`
	Wait        float64 `help:"Seconds from the end of the connections to the last look." default:"60"`
	Dir         string  `help:"Directory of logs (default: the temporary directory)." type:"path" placeholder:"DIR"`
}

// Help implements kong's HelpProvider.
func (benchIdleCmd) Help() string {
	return `A router has one stub worker and many connections of clients that have had an answer and wait. Measured is the router's resident memory before, meanwhile and afterwards. The command fails if the router keeps more than 32 MiB.`
}

// Run measures and prints.
func (c *benchIdleCmd) Run(ctx context.Context, stdout io.Writer, r *root) error {
	run, err := r.programs()
	if err != nil {
		return err
	}
	return front.Idle(ctx, c.options(run, stdout))
}

// Validate implements kong's interface; its errors are errors of usage.
func (c *benchIdleCmd) Validate() error {
	o := c.options(cluster.Programs{}, nil)
	return errors.Join(moreThanZero(c.Connections > 0, "connections", c.Connections), o.Validate())
}

func (c *benchIdleCmd) options(run cluster.Programs, stdout io.Writer) front.IdleOptions {
	return front.IdleOptions{
		Connections: c.Connections, Wait: time.Duration(c.Wait * float64(time.Second)), Dir: c.Dir,
		Programs: run, Stub: []string{run.Lab, "bench", "front-stub"}, Out: stdout,
	}
}
