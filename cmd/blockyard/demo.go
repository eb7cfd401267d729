package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/blockyard-ai/blockyard/internal/demo"
	"github.com/blockyard-ai/blockyard/publisher"
)

// demoCmd runs everything on this machine under a workload. Flags that are
// pointers have a default that depends on the workload.
type demoCmd struct {
	Nodes        int      `default:"2" help:"Agents."`
	Engines      int      `default:"4" help:"Simulated engines, over all nodes."`
	Requests     *int     `aliases:"limit,trace-requests" help:"Requests to send; of a trace, the lines to take (default 400, with --trace 1000)."`
	Seed         uint64   `default:"1" help:"Selects the workload and the event frames that are left out."`
	SpeedUp      *float64 `help:"Divide simulated time by this (default 6, with --trace 5)."`
	PrefillRate  *int     `help:"Tokens that an engine prefills in a simulated second (default 5000, with --trace 20000)."`
	Trace        string   `placeholder:"FILE" help:"Play this trace in Mooncake's format instead of the built-in workload."`
	BlockSize    *int     `help:"Tokens in a block (default 16, with --trace 128)."`
	DeviceBlocks *int     `help:"Device blocks of an engine (default 768, with --trace 1536, fewer with few requests)."`
	HostSize     *Size    `help:"Host tier of a node (default 8MiB, with --trace 28MiB, less with few requests)."`
	DiskSize     *Size    `help:"Disk tier of a node (default 256MiB, with --trace 512MiB)."`
	DropFrames   *int     `help:"Event frames that each engine leaves out on purpose (default 2)."`
	Dir          string   `placeholder:"DIR" help:"Where disk tiers and logs go (default: the temporary directory)."`
	Report       string   `placeholder:"FILE" help:"Write the figures as JSON."`
	Only         string   `enum:"all,ours" default:"all" help:"Runs to make: all, or ours without the two to compare with."`
	KeepLogs     bool     `help:"Keep the logs of all processes even if nothing fails."`
	Selftest     bool     `help:"Instead of the demo, flip stored bytes and see that each is noticed."`
}

// Help implements kong's HelpProvider.
func (demoCmd) Help() string {
	return `The same requests are played three times with fresh processes: routed by what the caches hold, in turn, and without host and disk tiers. Every loaded block is compared byte by byte, and at the end the router's picture with what engines and agents really hold. The exit status is 1 when a byte is wrong, a tier was never used, a lost event was not repaired, or the pictures differ.`
}

// Run starts a NATS server inside this process and everything else as child
// processes.
func (c *demoCmd) Run(ctx context.Context, stdout io.Writer) error {
	o, err := c.options(stdout)
	if err != nil {
		return err
	}
	log, err := newLogger("demo")
	if err != nil {
		return err
	}
	nats, err := publisher.StartEmbedded(publisher.EmbeddedOptions{Log: log})
	if err != nil {
		return fmt.Errorf("embedded NATS server: %w", err)
	}
	defer nats.Close()
	o.NATSURL = nats.URL()
	if c.Selftest {
		return demo.Selftest(ctx, o)
	}
	return demo.Run(ctx, o)
}

func (c *demoCmd) options(stdout io.Writer) (demo.Options, error) {
	exe, err := os.Executable()
	if err != nil {
		return demo.Options{}, fmt.Errorf("find this binary: %w", err)
	}
	requests := 0
	override(&requests, c.Requests)
	o := demo.Defaults(c.Trace, requests)
	override(&o.Requests, c.Requests) // a zero is for Validate to refuse
	o.Exe, o.Dir, o.Report = exe, c.Dir, c.Report
	o.Nodes, o.Engines, o.Seed = c.Nodes, c.Engines, c.Seed
	o.OnlyOurs, o.KeepLogs = c.Only == "ours", c.KeepLogs
	override(&o.Requests, c.Requests)
	override(&o.SpeedUp, c.SpeedUp)
	override(&o.PrefillRate, c.PrefillRate)
	override(&o.BlockSize, c.BlockSize)
	override(&o.DeviceBlocks, c.DeviceBlocks)
	override(&o.DropFrames, c.DropFrames)
	override(&o.HostBytes, (*uint64)(c.HostSize))
	override(&o.DiskBytes, (*uint64)(c.DiskSize))
	o.Out, o.Err = stdout, os.Stderr
	if f, ok := stdout.(*os.File); ok {
		o.Terminal = isTerminal(f)
		o.Color = o.Terminal && os.Getenv("NO_COLOR") == ""
	}
	return o, nil
}

// override sets field if a flag was given.
func override[T any](field *T, flag *T) {
	if flag != nil {
		*field = *flag
	}
}
